// SPDX-License-Identifier: Apache-2.0
// The functions that releases after 44 have added. What the device has not is EOPNOTSUPP, as where
// a vendor's library does without.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "abi.h"
#include "handles.h"
#include "newer_abi.h"

#undef ibv_query_port  // A macro of verbs.h.

namespace weir::ibverbs {
namespace {

int refuse() {
    return EOPNOTSUPP;
}

// ---- Buffers of the library's own ----

int allocate(ibv_pd* abi, std::size_t size, ibv_buf*& out, void*& address) {
    const auto* pd = find<ProtectionDomain>(abi);
    if (pd == nullptr || size == 0) return EINVAL;
    void* bytes = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) return ENOMEM;
    auto buffer = std::make_unique<Buffer>();
    buffer->context = pd->context;
    buffer->pd = abi;
    buffer->bytes = static_cast<std::byte*>(bytes);
    buffer->length = size;
    const int error = publish(buffer, out, [&] { munmap(bytes, size); });
    address = bytes;
    return error;
}

bool lies_in(const Buffer& buffer, const void* address, std::size_t length) {
    const auto base = reinterpret_cast<std::uintptr_t>(buffer.bytes);
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return at >= base && at - base <= buffer.length && length <= buffer.length - (at - base);
}

// ---- Registration by one call for all kinds ----

ibv_mr* register_file(ibv_pd* pd, const ibv_mr_init_attr& attr) {
    // A file has no address of its own: what its bytes are called must be said.
    constexpr std::uint64_t kNeeded = kRegionFileOffset | kRegionIova;
    const bool whole = (attr.comp_mask & kNeeded) == kNeeded;
    if (!whole || (attr.comp_mask & (kRegionAddress | kRegionBuffer)) != 0)
        return fail_null<ibv_mr>(EINVAL);
    return ibv_reg_dmabuf_mr(pd, attr.fd_offset, attr.length, attr.iova, attr.fd, attr.access);
}

ibv_mr* register_any(ibv_pd* pd, const ibv_mr_init_attr& attr) {
    const auto has = [&attr](std::uint64_t field) { return (attr.comp_mask & field) != 0; };
    constexpr std::uint64_t kOffered =
        kRegionIova | kRegionAddress | kRegionFile | kRegionFileOffset | kRegionBuffer;
    if ((attr.comp_mask & ~kOffered) != 0) return fail_null<ibv_mr>(EOPNOTSUPP);
    if (has(kRegionFile)) return register_file(pd, attr);
    if (!has(kRegionAddress) || has(kRegionFileOffset)) return fail_null<ibv_mr>(EINVAL);
    if (has(kRegionBuffer)) {
        const auto* buffer = find<Buffer>(attr.buf);
        if (buffer == nullptr || buffer->pd != pd || !lies_in(*buffer, attr.addr, attr.length))
            return fail_null<ibv_mr>(EINVAL);
    }
    const auto iova = has(kRegionIova) ? attr.iova : reinterpret_cast<std::uintptr_t>(attr.addr);
    return ibv_reg_mr_iova2(pd, attr.addr, attr.length, iova, static_cast<unsigned>(attr.access));
}

// ---- Speed of a port ----

// Of one lane, by the code's bit: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR; in 100 Mbit/s.
constexpr std::uint64_t kLaneSpeeds[] = {25, 50, 100, 100, 140, 250, 500, 1000, 2000};
// Lanes by the width's bit.
constexpr std::uint64_t kLanes[] = {1, 4, 8, 12, 2};

template <std::size_t kCount>
std::uint64_t by_bit(const std::uint64_t (&table)[kCount], unsigned code) {
    for (std::size_t bit = 0; bit < kCount; ++bit)
        if (code == 1U << bit) return table[bit];
    return 0;
}

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_mr* ibv_reg_mr_ex(ibv_pd* pd, ibv_mr_init_attr* attr) {
    return attr == nullptr ? fail_null<ibv_mr>(EINVAL) : register_any(pd, *attr);
}

void* ibv_alloc_buf(ibv_pd* pd, std::size_t size, ibv_buf** buffer) {
    if (buffer == nullptr) return fail_null<void>(EINVAL);
    void* address = nullptr;
    const int error = fenced([&] { return allocate(pd, size, *buffer, address); });
    return error == 0 ? address : fail_null<void>(error);
}

void ibv_free_buf(ibv_buf* abi) {
    fenced([abi] {
        return destroy<Buffer>(abi, [](Buffer& buffer) {
            munmap(buffer.bytes, buffer.length);
            return 0;
        });
    });
}

ibv_mr* ibv_reg_buf_mr(ibv_pd* pd, ibv_buf* buffer, void* address, std::size_t length, int access) {
    ibv_mr_init_attr attr{};
    attr.length = length;
    attr.access = access;
    attr.comp_mask = kRegionBuffer | kRegionAddress;
    attr.addr = address;
    attr.buf = buffer;
    return register_any(pd, attr);
}

// Its memory is the process's own, no dma-buf.
int ibv_export_buf_dmabuf_fd(ibv_buf* buffer) {
    return minus_one_if(find<Buffer>(buffer) == nullptr ? EINVAL : ENODATA);
}
int ibv_dm_export_dmabuf_fd(ibv_dm* dm) {
    return minus_one_if(find<DeviceMemory>(dm) == nullptr ? EINVAL : EOPNOTSUPP);
}

int ibv_query_port_speed(ibv_context* abi, std::uint32_t port, std::uint64_t* speed) {
    return fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || speed == nullptr || port > UINT8_MAX) return EINVAL;
        ibv_port_attr attr{};
        const int error = context->hca->query_port(static_cast<int>(port), attr);
        if (error == 0)
            *speed = by_bit(kLaneSpeeds, attr.active_speed) * by_bit(kLanes, attr.active_width);
        return error;
    });
}

ibv_dmah* ibv_alloc_dmah(ibv_context*, void*) {
    return fail_null<ibv_dmah>(EOPNOTSUPP);
}
int ibv_dealloc_dmah(ibv_dmah*) {
    return refuse();
}

int _ibv_query_comp_cntr_caps(ibv_context*, void*, std::size_t) {
    return refuse();
}
ibv_comp_cntr* ibv_create_comp_cntr(ibv_context*, void*) {
    return fail_null<ibv_comp_cntr>(EOPNOTSUPP);
}
int ibv_destroy_comp_cntr(ibv_comp_cntr*) {
    return refuse();
}
int ibv_set_comp_cntr(ibv_comp_cntr*, std::uint64_t) {
    return refuse();
}
int ibv_set_err_comp_cntr(ibv_comp_cntr*, std::uint64_t) {
    return refuse();
}
int ibv_inc_comp_cntr(ibv_comp_cntr*, std::uint64_t) {
    return refuse();
}
int ibv_inc_err_comp_cntr(ibv_comp_cntr*, std::uint64_t) {
    return refuse();
}
int ibv_read_comp_cntr(ibv_comp_cntr*, std::uint64_t*) {
    return refuse();
}
int ibv_read_err_comp_cntr(ibv_comp_cntr*, std::uint64_t*) {
    return refuse();
}
int ibv_qp_attach_comp_cntr(ibv_qp*, ibv_comp_cntr*, void*) {
    return refuse();
}

}  // extern "C"
