// SPDX-License-Identifier: Apache-2.0
// Opening a device, and what can be asked of it and of its ports.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>

#include "abi.h"
#include "device.h"
#include "operations.h"
#include "private_abi.h"

#undef ibv_query_port  // A macro of verbs.h; here the symbol is meant.

namespace weir::ibverbs {
namespace {

// Callers say how large their struct is: older ones have less of it, newer ones more, which reads
// as zero.
template <class T>
void copy_sized(const T& from, void* to, std::size_t size) {
    std::memset(to, 0, size);
    std::memcpy(to, &from, std::min(size, sizeof from));
}

int query_port(ibv_context* abi, std::uint8_t port, ibv_port_attr* attr, std::size_t size) {
    return fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || attr == nullptr) return EINVAL;
        NewerPortAttr full{};
        if (const int error = context->hca->query_port(port, full.base); error != 0) return error;
        full.active_speed_ex = full.base.active_speed;
        copy_sized(full, attr, size);
        return 0;
    });
}

int query_device_ex(ibv_context* abi, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, std::size_t size) {
    return fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || attr == nullptr || size < sizeof attr->orig_attr) return EINVAL;
        if (input != nullptr && input->comp_mask != 0) return EINVAL;
        ibv_device_attr_ex full{};
        if (const int error = context->hca->query_device(full); error != 0) return error;
        copy_sized(full, attr, size);
        return 0;
    });
}

// The clock that completions are stamped with.
int query_rt_values(ibv_context* abi, ibv_values_ex* values) {
    return fenced([&] {
        if (find<Context>(abi) == nullptr || values == nullptr) return EINVAL;
        if ((values->comp_mask & ~std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) return EOPNOTSUPP;
        if (values->comp_mask == 0) return 0;
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        // Raw means in the clock's own units, all in the second field, as other devices have it.
        values->raw_clock.tv_nsec = now.tv_sec * 1'000'000'000 + now.tv_nsec;
        values->raw_clock.tv_sec = 0;
        return 0;
    });
}

// What a closed context's forgotten objects lead to.
int closed_poll_cq(ibv_cq*, int, ibv_wc*) {
    return -1;
}
int closed_notify(ibv_cq*, int) {
    return EINVAL;
}
int closed_post_send(ibv_qp*, ibv_send_wr* list, ibv_send_wr** bad) {
    *bad = list;
    return EINVAL;
}
int closed_post_recv(ibv_qp*, ibv_recv_wr* list, ibv_recv_wr** bad) {
    *bad = list;
    return EINVAL;
}
int closed_post_srq_recv(ibv_srq*, ibv_recv_wr* list, ibv_recv_wr** bad) {
    *bad = list;
    return EINVAL;
}

// Operations left null read as "not supported" in verbs.h, and programs do without.
void fill_operations(Context& context) {
    verbs_context& verbs = context.verbs;
    verbs.sz = sizeof verbs;
    verbs.query_port = query_port;
    verbs.query_device_ex = query_device_ex;
    verbs.query_rt_values = query_rt_values;
    verbs.create_cq_ex = create_cq_ex;
    verbs.modify_cq = modify_cq;
    verbs.create_qp_ex = create_qp_ex;
    verbs.open_qp = open_qp;
    verbs.create_srq_ex = create_srq_ex;
    verbs.get_srq_num = get_srq_num;
    verbs.open_xrcd = open_xrcd;
    verbs.close_xrcd = close_xrcd;
    verbs.alloc_null_mr = alloc_null_mr;
    verbs.advise_mr = advise_mr;
    verbs.alloc_dm = alloc_dm;
    verbs.free_dm = free_dm;
    verbs.reg_dm_mr = reg_dm_mr;
    verbs.alloc_td = alloc_td;
    verbs.dealloc_td = dealloc_td;
    verbs.alloc_parent_domain = alloc_parent_domain;
    ibv_context& base = verbs.context;
    base.abi_compat = __VERBS_ABI_IS_EXTENDED;
    base.ops.poll_cq = poll_cq;
    base.ops.req_notify_cq = req_notify_cq;
    base.ops.post_send = post_send;
    base.ops.post_recv = post_recv;
    base.ops.post_srq_recv = post_srq_recv;
    base.ops.alloc_mw = alloc_mw;
    base.ops.bind_mw = bind_mw;
    base.ops.dealloc_mw = dealloc_mw;
}

void refuse_operations(ibv_context& base) {
    base.ops.poll_cq = closed_poll_cq;
    base.ops.req_notify_cq = closed_notify;
    base.ops.post_send = closed_post_send;
    base.ops.post_recv = closed_post_recv;
    base.ops.post_srq_recv = closed_post_srq_recv;
}

int open_device(Device* device, ibv_context*& out) {
    if (device == nullptr) return ENODEV;
    auto context = std::make_unique<Context>();
    const hca::DeviceDescription description = description_of(*device);
    if (const int error = hca::Hca::open(description, context->hca); error != 0) return error;
    context->link_layer = description.link_layer;
    fill_operations(*context);
    ibv_context* base = context->abi();
    base->device = &device->base;
    // There is no kernel device behind this one, but programs duplicate its file or set its flags.
    context->command = open("/dev/null", O_RDWR | O_CLOEXEC);
    base->cmd_fd = context->command;
    base->async_fd = context->hca->async_fd();
    base->num_comp_vectors = 1;
    pthread_mutex_init(&base->mutex, nullptr);
    return publish(context, out, [] {});
}

std::uint32_t gid_type(const Context& context) {
    return context.link_layer == IBV_LINK_LAYER_ETHERNET ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
}

int query_gid_entry(const Context& context, int port, int index, ibv_gid_entry& entry) {
    entry = {};
    if (const int error = context.hca->query_gid(port, index, entry.gid); error != 0) return error;
    if (entry.gid.global.subnet_prefix == 0 && entry.gid.global.interface_id == 0) return ENODATA;
    entry.port_num = static_cast<std::uint32_t>(port);
    entry.gid_index = static_cast<std::uint32_t>(index);
    entry.gid_type = gid_type(context);
    return 0;
}

// Fills the entries of all ports. Returns their number, or a negative errno value: -EINVAL if they
// are more than `most`.
ssize_t query_gid_table(const Context& context, void* entries, std::size_t most,
                        std::size_t entry_size) {
    ibv_device_attr_ex device{};
    if (const int error = context.hca->query_device(device); error != 0) return -error;
    std::size_t count = 0;
    for (int port = 1; port <= device.orig_attr.phys_port_cnt; ++port) {
        ibv_port_attr attr{};
        if (const int error = context.hca->query_port(port, attr); error != 0) return -error;
        for (int index = 0; index < attr.gid_tbl_len; ++index) {
            ibv_gid_entry entry;
            if (query_gid_entry(context, port, index, entry) != 0) continue;
            if (count == most) return -EINVAL;
            copy_sized(entry, static_cast<std::byte*>(entries) + count * entry_size, entry_size);
            ++count;
        }
    }
    return static_cast<ssize_t>(count);
}

int find_pkey(const Context& context, int port, __be16 pkey, int& index) {
    ibv_port_attr attr{};
    if (const int error = context.hca->query_port(port, attr); error != 0) return error;
    for (index = 0; index < attr.pkey_tbl_len; ++index) {
        __be16 found = 0;
        if (context.hca->query_pkey(port, index, found) == 0 && found == pkey) return 0;
    }
    return ENOENT;
}

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_context* ibv_open_device(ibv_device* device) {
    return fenced_object<ibv_context>(
        [device](ibv_context*& out) { return open_device(find_device(device), out); });
}
WEIR_ALSO_IN_1_0(ibv_open_device);

int ibv_close_device(ibv_context* abi) {
    return minus_one_if(fenced([abi] {
        auto* context = HandleTable::instance().claim<Context>(abi);
        if (context == nullptr) return EINVAL;
        const std::size_t forgotten = HandleTable::instance().bury_all_of(abi);
        context->hca.reset();
        if (context->command >= 0) close(context->command);
        if (forgotten != 0) {  // Programs may still post to what they did not destroy.
            refuse_operations(*abi);
            return 0;
        }
        HandleTable::instance().remove(abi);
        delete context;
        return 0;
    }));
}
WEIR_ALSO_IN_1_0(ibv_close_device);

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
    ibv_device_attr_ex full{};
    if (attr == nullptr) return EINVAL;
    const int error = query_device_ex(context, nullptr, &full, sizeof full);
    if (error == 0) *attr = full.orig_attr;
    return error;
}
WEIR_ALSO_IN_1_0(ibv_query_device);

// The symbol, unlike the macro of the same name, is called with the older, shorter struct.
int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
    return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                      offsetof(ibv_port_attr, port_cap_flags2));
}
WEIR_ALSO_IN_1_0(ibv_query_port);

int ibv_query_gid(ibv_context* abi, std::uint8_t port, int index, ibv_gid* gid) {
    return minus_one_if(fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || gid == nullptr) return EINVAL;
        return context->hca->query_gid(port, index, *gid);
    }));
}
WEIR_ALSO_IN_1_0(ibv_query_gid);

int _ibv_query_gid_ex(ibv_context* abi, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_size) {
    return fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || entry == nullptr || flags != 0) return EINVAL;
        if (port > UINT8_MAX || index > INT16_MAX) return EINVAL;
        ibv_gid_entry full;
        const int error =
            query_gid_entry(*context, static_cast<int>(port), static_cast<int>(index), full);
        if (error == 0) copy_sized(full, entry, entry_size);
        return error;
    });
}

ssize_t _ibv_query_gid_table(ibv_context* abi, ibv_gid_entry* entries, std::size_t max_entries,
                             std::uint32_t flags, std::size_t entry_size) {
    ssize_t count = 0;
    const int error = fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || flags != 0 || entry_size == 0) return EINVAL;
        if (entries == nullptr && max_entries != 0) return EINVAL;
        count = query_gid_table(*context, entries, max_entries, entry_size);
        return 0;
    });
    return error == 0 ? count : -error;
}

int ibv_query_gid_type(ibv_context* abi, std::uint8_t port, unsigned int index, int* type) {
    return minus_one_if(fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || type == nullptr || index > INT16_MAX) return EINVAL;
        ibv_gid_entry entry;
        const int error = query_gid_entry(*context, port, static_cast<int>(index), entry);
        if (error == 0) *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
        return error;
    }));
}

WEIR_PRIVATE(ibv_query_gid_type);

int ibv_query_pkey(ibv_context* abi, std::uint8_t port, int index, __be16* pkey) {
    return minus_one_if(fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || pkey == nullptr) return EINVAL;
        return context->hca->query_pkey(port, index, *pkey);
    }));
}
WEIR_ALSO_IN_1_0(ibv_query_pkey);

int ibv_get_pkey_index(ibv_context* abi, std::uint8_t port, __be16 pkey) {
    int index = -1;
    const int error = fenced([&] {
        const auto* context = find<Context>(abi);
        return context == nullptr ? EINVAL : find_pkey(*context, port, pkey, index);
    });
    return error == 0 ? index : minus_one_if(error);
}

ibv_context* ibv_import_device(int) {
    return fail_null<ibv_context>(EOPNOTSUPP);
}

}  // extern "C"
