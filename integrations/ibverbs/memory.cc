// SPDX-License-Identifier: Apache-2.0
// Memory regions of all kinds, device memory, and what libibverbs has for programs that fork.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "abi.h"
#include "handles.h"
#include "hca/newer_verbs.h"
#include "operations.h"
#include "private_abi.h"

#undef ibv_reg_mr  // Macros of verbs.h; here the symbols are meant.
#undef ibv_reg_mr_iova

namespace weir::ibverbs {
namespace {

// Flush-persistent is not among them: no memory here outlasts the machine's power.
constexpr unsigned kMandatoryAccess =
    unsigned{hca::kAccessFlushGlobal} | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
    IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;

// Splits off what a device may ignore. Remote writers need what a local writer needs
// (IBTA 11.2.8.2).
int check_access(unsigned access) {
    const unsigned mandatory = access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
    if ((mandatory & ~kMandatoryAccess) != 0) return EINVAL;
    const bool remote_writes =
        (mandatory & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    return remote_writes && (mandatory & IBV_ACCESS_LOCAL_WRITE) == 0 ? EINVAL : 0;
}

struct Region {
    void* address;
    std::size_t length;
    std::uint64_t iova;  ///< What peers call its first byte.
    unsigned access;
    /// What is behind it, if that is not the program's own memory.
    MemoryRegion::Source source = MemoryRegion::Source::kProgram;
    DeviceMemory* device_memory = nullptr;
    void* mapping = nullptr;
    std::size_t mapped = 0;
    void* called = nullptr;  ///< ibv_mr.addr of such a one.
};

int register_region(ibv_pd* abi, Region region, ibv_mr*& out) {
    auto* pd = find<ProtectionDomain>(abi);
    if (pd == nullptr) return EINVAL;
    if (const int error = check_access(region.access); error != 0) return error;
    region.access &= ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
    if ((region.access & IBV_ACCESS_ZERO_BASED) != 0) region.iova = 0;
    auto mr = std::make_unique<MemoryRegion>();
    ibv_mr& base = mr->base;
    hca::Hca& hca = *pd->context->hca;
    const int error = hca.reg_mr(pd->number, region.address, region.length, region.iova,
                                 static_cast<int>(region.access), base.lkey, base.rkey);
    if (error != 0) return error;
    base.pd = abi;
    base.addr = region.source == MemoryRegion::Source::kProgram ? region.address : region.called;
    base.length = region.length;
    mr->source = region.source;
    mr->device_memory = region.device_memory;
    mr->mapping = region.mapping;
    mr->mapped = region.mapped;
    mr->context = pd->context;
    mr->lkey = base.lkey;
    return publish(mr, out, [&] { hca.dereg_mr(base.lkey); });
}

ibv_mr* register_memory(ibv_pd* pd, const Region& region) {
    return fenced_object<ibv_mr>([&](ibv_mr*& out) { return register_region(pd, region, out); });
}

int release_region(MemoryRegion& mr) {
    if (const int error = mr.context->hca->dereg_mr(mr.lkey); error != 0) return error;
    if (mr.device_memory != nullptr) --mr.device_memory->region_count;
    if (mr.mapping != nullptr) munmap(mr.mapping, mr.mapped);
    return 0;
}

// What a dma-buf exports is mapped and registered. Any file that can be mapped will do.
int register_file(ibv_pd* pd, int fd, std::uint64_t offset, Region region, ibv_mr*& out) {
    if (find<ProtectionDomain>(pd) == nullptr || region.length == 0) return EINVAL;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const auto into = offset % page;
    if (region.length > SIZE_MAX - into) return EINVAL;
    const int change = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const bool writes = (region.access & static_cast<unsigned>(change)) != 0;
    region.mapped = region.length + into;
    region.mapping = mmap(nullptr, region.mapped, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                          MAP_SHARED, fd, static_cast<off_t>(offset - into));
    if (region.mapping == MAP_FAILED) return errno;
    region.address = static_cast<std::byte*>(region.mapping) + into;
    region.source = MemoryRegion::Source::kFile;
    region.called = reinterpret_cast<void*>(offset);
    struct stat status {};
    const bool known = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const bool beyond = known && (offset > size || region.length > size - offset);
    const int error = beyond ? EINVAL : register_region(pd, region, out);
    if (error != 0) munmap(region.mapping, region.mapped);
    return error;
}

// IBV_REREG_MR_ERR_* and errno, or 0.
int rereg_failure(int kind, int error) {
    errno = error;
    return kind;
}

struct Change {
    int flags;
    ibv_pd* pd;
    void* address;
    std::size_t length;
    int access;
};

int change_region(ibv_mr* abi, const Change& change) {
    auto* mr = find<MemoryRegion>(abi);
    if (mr == nullptr || mr->source != MemoryRegion::Source::kProgram) return EINVAL;
    const auto has = [&change](int flag) { return (change.flags & flag) != 0; };
    if (change.flags == 0 || (change.flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0) return EINVAL;
    const bool moves = has(IBV_REREG_MR_CHANGE_TRANSLATION);
    if (moves && (change.address == nullptr || change.length == 0)) return EINVAL;
    hca::Hca::MrChange order{change.flags,
                             0,
                             change.address,
                             change.length,
                             reinterpret_cast<std::uintptr_t>(change.address),
                             0};
    if (has(IBV_REREG_MR_CHANGE_PD)) {
        const auto* pd = find<ProtectionDomain>(change.pd);
        if (pd == nullptr || pd->context != mr->context) return EINVAL;
        order.pd = pd->number;
    }
    if (has(IBV_REREG_MR_CHANGE_ACCESS)) {
        const auto access = static_cast<unsigned>(change.access);
        if (const int error = check_access(access); error != 0) return error;
        order.access = static_cast<int>(access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE));
    }
    if (const int error = mr->context->hca->rereg_mr(mr->lkey, order); error != 0) return error;
    if (has(IBV_REREG_MR_CHANGE_PD)) abi->pd = change.pd;
    if (moves) {
        abi->addr = change.address;
        abi->length = change.length;
    }
    return 0;
}

std::atomic<bool> fork_initialized{false};

}  // namespace

ibv_mr* alloc_null_mr(ibv_pd* abi) {
    return fenced_object<ibv_mr>([&](ibv_mr*& out) {
        auto* pd = find<ProtectionDomain>(abi);
        if (pd == nullptr) return EINVAL;
        auto mr = std::make_unique<MemoryRegion>();
        hca::Hca& hca = *pd->context->hca;
        if (const int error = hca.alloc_null_mr(pd->number, mr->lkey); error != 0) return error;
        mr->context = pd->context;
        mr->source = MemoryRegion::Source::kNull;
        mr->base.pd = abi;
        mr->base.length = SIZE_MAX;
        mr->base.lkey = mr->lkey;
        const auto lkey = mr->lkey;
        return publish(mr, out, [&] { hca.dereg_mr(lkey); });
    });
}

int advise_mr(ibv_pd* abi, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* sges,
              std::uint32_t count) {
    return fenced([&] {
        const auto* pd = find<ProtectionDomain>(abi);
        if (pd == nullptr || sges == nullptr || count == 0) return EINVAL;
        if ((flags & ~std::uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0) return EINVAL;
        const bool writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        const bool checked = advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
        if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) return EOPNOTSUPP;
        return pd->context->hca->advise_mr(pd->number, writes, checked, sges, count);
    });
}

namespace {

// Devices move words of four bytes: a program that does without is told so here already.
bool copyable(const DeviceMemory* dm, std::uint64_t offset, std::size_t length) {
    if (dm == nullptr || offset > dm->length || length > dm->length - offset) return false;
    return offset % 4 == 0 && length % 4 == 0;
}

int copy_to(ibv_dm* abi, std::uint64_t offset, const void* from, std::size_t length) {
    const auto* dm = find<DeviceMemory>(abi);
    if (!copyable(dm, offset, length)) return EINVAL;
    if (length > 0) std::memcpy(dm->bytes + offset, from, length);
    return 0;
}

int copy_from(void* to, ibv_dm* abi, std::uint64_t offset, std::size_t length) {
    const auto* dm = find<DeviceMemory>(abi);
    if (!copyable(dm, offset, length)) return EINVAL;
    if (length > 0) std::memcpy(to, dm->bytes + offset, length);
    return 0;
}

// Takes `length` bytes of what a context may have. False: there are not so many left.
bool take_device_memory(Context& context, std::size_t length) {
    auto used = context.device_memory_used.load();
    do {
        if (length > hca::kDeviceMemoryMax - used) return false;
    } while (!context.device_memory_used.compare_exchange_weak(used, used + length));
    return true;
}

int make_device_memory(ibv_context* abi, const ibv_alloc_dm_attr* attr, ibv_dm*& out) {
    auto* context = find<Context>(abi);
    if (context == nullptr || attr == nullptr || attr->length == 0) return EINVAL;
    if (attr->comp_mask != 0) return EOPNOTSUPP;
    constexpr std::uint32_t kPageBits = 12;
    if (attr->log_align_req > kPageBits) return EINVAL;
    if (!take_device_memory(*context, attr->length)) return ENOMEM;
    void* bytes =
        mmap(nullptr, attr->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        context->device_memory_used -= attr->length;
        return ENOMEM;
    }
    auto dm = std::make_unique<DeviceMemory>();
    dm->context = context;
    dm->bytes = static_cast<std::byte*>(bytes);
    dm->length = attr->length;
    dm->base.memcpy_to_dm = copy_to;
    dm->base.memcpy_from_dm = copy_from;
    return publish(dm, out, [&] {
        munmap(bytes, attr->length);
        context->device_memory_used -= attr->length;
    });
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr) {
    return fenced_object<ibv_dm>(
        [&](ibv_dm*& out) { return make_device_memory(context, attr, out); });
}

int free_dm(ibv_dm* abi) {
    return fenced([abi] {
        return destroy<DeviceMemory>(abi, [](DeviceMemory& dm) {
            if (dm.region_count != 0) return EBUSY;
            munmap(dm.bytes, dm.length);
            dm.context->device_memory_used -= dm.length;
            return 0;
        });
    });
}

// Such a region begins at zero, as the program cannot know an address of device memory.
ibv_mr* reg_dm_mr(ibv_pd* abi, ibv_dm* memory, std::uint64_t offset, std::size_t length,
                  unsigned access) {
    return fenced_object<ibv_mr>([&](ibv_mr*& out) {
        const auto* pd = find<ProtectionDomain>(abi);
        auto* dm = find<DeviceMemory>(memory);
        if (pd == nullptr || dm == nullptr || dm->context != pd->context) return EINVAL;
        if (offset > dm->length || length > dm->length - offset) return EINVAL;
        if ((access & IBV_ACCESS_ZERO_BASED) == 0) return EINVAL;
        Region region{dm->bytes + offset, length, 0, access};
        region.source = MemoryRegion::Source::kDevice;
        region.device_memory = dm;
        const int error = register_region(abi, region, out);
        if (error == 0) ++dm->region_count;
        return error;
    });
}

}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
    return register_memory(pd, {address, length, reinterpret_cast<std::uintptr_t>(address),
                                static_cast<unsigned>(access)});
}
WEIR_ALSO_IN_1_0(ibv_reg_mr);

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                        int access) {
    return register_memory(pd, {address, length, iova, static_cast<unsigned>(access)});
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova,
                         unsigned int access) {
    return register_memory(pd, {address, length, iova, access});
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                          int fd, int access) {
    return fenced_object<ibv_mr>([&](ibv_mr*& out) {
        Region region{nullptr, length, iova, static_cast<unsigned>(access)};
        return register_file(pd, fd, offset, region, out);
    });
}

// On any error the old region is as it was, which is what _ERR_INPUT and _ERR_CMD both say.
int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t length, int access) {
    const int error = fenced([&] {
        return change_region(mr, {flags, pd, address, length, access});
    });
    if (error == 0) return 0;
    return rereg_failure(error == EINVAL ? IBV_REREG_MR_ERR_INPUT : IBV_REREG_MR_ERR_CMD, error);
}

int ibv_dereg_mr(ibv_mr* abi) {
    return fenced([abi] { return destroy<MemoryRegion>(abi, release_region); });
}
WEIR_ALSO_IN_1_0(ibv_dereg_mr);

// Sharing objects between processes is done through a kernel device's file, which we have not.
ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) {
    return fail_null<ibv_pd>(EOPNOTSUPP);
}
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) {
    return fail_null<ibv_mr>(EOPNOTSUPP);
}
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) {
    return fail_null<ibv_dm>(EOPNOTSUPP);
}
void ibv_unimport_dm(ibv_dm*) {}

// The engine keeps registered memory safe across a fork by itself; a program may still ask for it.
int ibv_fork_init(void) {
    fork_initialized = true;
    return 0;
}

ibv_fork_status ibv_is_fork_initialized(void) {
    return fork_initialized ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

int ibv_dontfork_range(void*, std::size_t) {
    return 0;
}
int ibv_dofork_range(void*, std::size_t) {
    return 0;
}

}  // extern "C"
