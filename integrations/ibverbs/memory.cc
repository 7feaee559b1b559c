// SPDX-License-Identifier: Apache-2.0
// Protection domains, memory regions, and what libibverbs has for programs that fork.
#include <atomic>
#include <memory>

#include "abi.h"
#include "handles.h"
#include "private_abi.h"

#undef ibv_reg_mr  // Macros of verbs.h; here the symbols are meant.
#undef ibv_reg_mr_iova

namespace weir::ibverbs {
namespace {

constexpr unsigned kMandatoryAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;

// Splits off what a device may ignore. Remote writers need what a local writer needs
// (IBTA 11.2.8.2).
int check_access(unsigned access) {
    const unsigned mandatory = access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
    if ((mandatory & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
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
    base.addr = region.address;
    base.length = region.length;
    mr->context = pd->context;
    mr->lkey = base.lkey;
    return publish(mr, out, [&] { hca.dereg_mr(base.lkey); });
}

ibv_mr* register_memory(ibv_pd* pd, const Region& region) {
    return fenced_object<ibv_mr>([&](ibv_mr*& out) { return register_region(pd, region, out); });
}

std::atomic<bool> fork_initialized{false};

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* abi) {
    return fenced_object<ibv_pd>([abi](ibv_pd*& out) {
        auto* context = find<Context>(abi);
        if (context == nullptr) return EINVAL;
        auto pd = std::make_unique<ProtectionDomain>();
        pd->context = context;
        pd->number = context->hca->alloc_pd();
        return publish(pd, out, [&] { context->hca->dealloc_pd(pd->number); });
    });
}
WEIR_ALSO_IN_1_0(ibv_alloc_pd);

int ibv_dealloc_pd(ibv_pd* abi) {
    return fenced([abi] {
        return destroy<ProtectionDomain>(abi, [](ProtectionDomain& pd) {
            if (pd.address_handle_count != 0) return EBUSY;
            return pd.context->hca->dealloc_pd(pd.number);
        });
    });
}
WEIR_ALSO_IN_1_0(ibv_dealloc_pd);

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

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) {
    return fail_null<ibv_mr>(EOPNOTSUPP);
}

int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, std::size_t, int) {
    errno = EOPNOTSUPP;
    return IBV_REREG_MR_ERR_INPUT;  // The old region stays as it was.
}

int ibv_dereg_mr(ibv_mr* abi) {
    return fenced([abi] {
        return destroy<MemoryRegion>(
            abi, [](MemoryRegion& mr) { return mr.context->hca->dereg_mr(mr.lkey); });
    });
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
