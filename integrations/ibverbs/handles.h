// SPDX-License-Identifier: Apache-2.0
// The objects behind the ABI's structs, and the table that knows which of them are alive.
//
// Each object begins with the struct that the program sees, so a pointer to one is a pointer to the
// other. The data path trusts that pointer, as with a device's own driver: one load leads to the
// engine. The control path trusts nothing: it finds objects by address in the table and compares
// what the program could have overwritten
// (`handle`, `context`), so a stale, foreign or damaged object is EINVAL and is never followed.
//
// Life of an entry:  add -> [find]* -> claim -> (restore, if it is still in use) -> remove.
// Between claim and remove an object is found by acknowledgements only, for which its destroyer
// waits.
//
// fork: the table is emptied in the child, which owns none of its parent's objects. Locks are held
// across the fork, so the child finds them free.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <unordered_map>

#include <infiniband/verbs.h>

#include "hca/hca.h"
#include "newer_abi.h"
#include "send_builder.h"

namespace weir::ibverbs {

/// Never freed, so that a program may keep the pointer however it likes.
struct Device {
    ibv_device base{};
    /// Where vendor libraries (libmlx5, libefa) look for the mark of their own devices. It stays
    /// null.
    const void* vendor_mark = nullptr;
    hca::DeviceDescription description;
    int index = 0;  ///< Its place among all devices that this process has seen.
};
static_assert(offsetof(Device, vendor_mark) == sizeof(ibv_device));

enum class Kind : std::uint8_t {
    kContext,
    kProtectionDomain,
    kMemoryRegion,
    kChannel,
    kCompletionQueue,
    kReceiveQueue,
    kQueuePair,
    kAddressHandle,
    kMemoryWindow,
    kDeviceMemory,
    kXrcDomain,
    kThreadDomain,
    kBuffer,
};

struct Context {
    using Abi = ibv_context;
    static constexpr Kind kKind = Kind::kContext;
    verbs_context verbs{};  ///< Its last member is what programs see.
    std::unique_ptr<hca::Hca> hca;
    std::uint32_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;  ///< IBV_LINK_LAYER_*
    /// Held while an event is taken or an object that events can concern is destroyed: an event
    /// never names an object that is gone. Guards the `..._taken` counts. Never held while waiting.
    std::mutex events;
    std::atomic<std::uint64_t> device_memory_used{0};
    int command = -1;  ///< What programs see as cmd_fd: a file that does nothing.

    ibv_context* abi() { return &verbs.context; }
};

struct ThreadDomain {
    using Abi = ibv_td;
    static constexpr Kind kKind = Kind::kThreadDomain;
    ibv_td base{};
    Context* context = nullptr;
    std::atomic<int> user_count{0};
};

struct ProtectionDomain {
    using Abi = ibv_pd;
    static constexpr Kind kKind = Kind::kProtectionDomain;
    ibv_pd base{};
    Context* context = nullptr;
    std::uint32_t number = 0;               ///< The engine's.
    std::atomic<int> address_handle_count;  ///< Which the engine does not know.
    std::atomic<int> child_count{0};        ///< Parent domains made of it.
    /// A parent domain is another name of the domain that it was made of: their number is one.
    ProtectionDomain* made_of = nullptr;
    ThreadDomain* thread_domain = nullptr;
};

/// Memory of the process that stands for a device's own.
struct DeviceMemory {
    using Abi = ibv_dm;
    static constexpr Kind kKind = Kind::kDeviceMemory;
    ibv_dm base{};
    Context* context = nullptr;
    std::byte* bytes = nullptr;
    std::size_t length = 0;
    std::atomic<int> region_count{0};
};

/// Memory that the library has allocated for the program (ibv_alloc_buf).
struct Buffer {
    using Abi = ibv_buf;
    static constexpr Kind kKind = Kind::kBuffer;
    ibv_buf base{};
    Context* context = nullptr;
    ibv_pd* pd = nullptr;
    std::byte* bytes = nullptr;
    std::size_t length = 0;
};

struct XrcDomain {
    using Abi = ibv_xrcd;
    static constexpr Kind kKind = Kind::kXrcDomain;
    ibv_xrcd base{};
    Context* context = nullptr;
    std::uint32_t number = 0;        ///< The engine's.
    std::atomic<int> user_count{0};  ///< QPs and SRQs that were made or opened with this handle.
};

struct MemoryRegion {
    using Abi = ibv_mr;
    static constexpr Kind kKind = Kind::kMemoryRegion;
    ibv_mr base{};
    Context* context = nullptr;
    std::uint32_t lkey = 0;  ///< A copy that the program cannot reach.
    enum class Source : std::uint8_t { kProgram, kNull, kDevice, kFile } source = Source::kProgram;
    DeviceMemory* device_memory = nullptr;
    void* mapping = nullptr;  ///< Of a dma-buf, and to be unmapped with the region.
    std::size_t mapped = 0;
};

struct MemoryWindow {
    using Abi = ibv_mw;
    static constexpr Kind kKind = Kind::kMemoryWindow;
    ibv_mw base{};
    Context* context = nullptr;
    std::uint32_t key = 0;  ///< One that it has had: copies that the program cannot reach.
    ibv_mw_type type = IBV_MW_TYPE_1;
};

struct Channel {
    using Abi = ibv_comp_channel;
    static constexpr Kind kKind = Kind::kChannel;
    ibv_comp_channel base{};
    Context* context = nullptr;
    std::unique_ptr<hca::CompletionChannel> engine;
    int queue_count = 0;  ///< CQs that use it. Guarded by context->events.
};

struct CompletionQueue {
    using Abi = ibv_cq;
    static constexpr Kind kKind = Kind::kCompletionQueue;
    ibv_cq_ex base{};  ///< Begins as an ibv_cq does.
    hca::CompletionQueue* engine = nullptr;
    Context* context = nullptr;
    Channel* channel = nullptr;
    /// The completion that the extended interface reads, between start_poll and end_poll.
    ibv_wc current{};
    std::uint64_t stamp_ns = 0;
    bool single_threaded = false;
    SpinLock reading;
    ibv_cq* abi() { return ibv_cq_ex_to_cq(&base); }
    std::uint32_t completion_events_taken = 0;
    std::uint32_t async_events_taken = 0;
};

struct ReceiveQueue {
    using Abi = ibv_srq;
    static constexpr Kind kKind = Kind::kReceiveQueue;
    ibv_srq base{};
    hca::SharedReceiveQueue* engine = nullptr;
    Context* context = nullptr;
    std::uint32_t events_taken = 0;
    XrcDomain* domain = nullptr;
};

struct QueuePair {
    using Abi = ibv_qp;
    static constexpr Kind kKind = Kind::kQueuePair;
    union {
        ibv_qp_ex extended{};
        ibv_qp base;
    };
    NewerOperations newer;  ///< Right behind ibv_qp_ex.
    hca::QueuePair* engine = nullptr;
    Context* context = nullptr;
    std::uint32_t events_taken = 0;
    std::unique_ptr<SendBuilder> builder;  ///< Made with send_ops_flags; else null.
    XrcDomain* domain = nullptr;           ///< XRC receive side: what it was made or opened in.
    QueuePair* next_handle = nullptr;      ///< Of the same engine's QP: itself, but for XRC.
    /// What the QP was made with, as the program may overwrite the fields of `base`.
    ibv_qp_init_attr made_with{};
};

// Programs of newer headers look for wr_flush right behind wr_atomic_write.
static_assert(offsetof(QueuePair, newer) == sizeof(ibv_qp_ex) &&
              sizeof(ibv_qp_ex) == offsetof(ibv_qp_ex, wr_atomic_write) + sizeof(void*));

struct AddressHandle {
    using Abi = ibv_ah;
    static constexpr Kind kKind = Kind::kAddressHandle;
    hca::AddressHandle engine{};  ///< Its first member is what programs see.
    ProtectionDomain* pd = nullptr;
    Context* context = nullptr;
};

template <class Object>
auto* abi_of(Object* object) {
    if constexpr (requires { object->abi(); })
        return object->abi();
    else
        return reinterpret_cast<typename Object::Abi*>(object);
}

template <class Object>
Object* object_of(typename Object::Abi* abi) {
    if constexpr (std::is_same_v<Object, Context>)
        return reinterpret_cast<Context*>(reinterpret_cast<std::byte*>(abi) -
                                          offsetof(verbs_context, context));
    else
        return reinterpret_cast<Object*>(abi);
}

class HandleTable {
  public:
    /// The one table. Never destroyed: programs destroy objects from exit handlers.
    static HandleTable& instance();

    /// Enters an object and gives it its handle and context. May throw std::bad_alloc.
    template <class Object>
    void add(Object* object) {
        const auto handle = next_handle_.fetch_add(1, std::memory_order_relaxed);
        set_handle(abi_of(object), handle);
        const ibv_context* context = nullptr;
        if constexpr (!std::is_same_v<Object, Context>) {
            context = object->context->abi();
            abi_of(object)->context = object->context->abi();
        }
        insert(abi_of(object), {Object::kKind, false, handle, context});
    }

    /// The live object at `abi`, or null.
    template <class Object>
    Object* find(typename Object::Abi* abi) {
        return access<Object>(abi, Access::kFind) ? object_of<Object>(abi) : nullptr;
    }

    /// The object at `abi` even if it is being destroyed, or null.
    template <class Object>
    Object* find_even_claimed(typename Object::Abi* abi) {
        return access<Object>(abi, Access::kFindEvenClaimed) ? object_of<Object>(abi) : nullptr;
    }

    /// Takes a live object for destruction: of several callers one gets it, the others null.
    template <class Object>
    Object* claim(typename Object::Abi* abi) {
        return access<Object>(abi, Access::kClaim) ? object_of<Object>(abi) : nullptr;
    }

    /// Makes a claimed object live again.
    void restore(const void* abi);
    /// Forgets a claimed object.
    void remove(const void* abi);
    /// Claims every object of a context that is being closed, for good, and returns how many there
    /// are: what a program forgot to destroy stays in memory, where nobody finds it but its old
    /// pointers harm nothing.
    std::size_t bury_all_of(const ibv_context* context);

  private:
    struct Entry {
        Kind kind;
        bool claimed;
        std::uint32_t handle;
        const ibv_context* context;
    };
    struct alignas(64) Shard {
        std::mutex lock;
        std::unordered_map<const void*, Entry> entries;
    };
    enum class Access { kFind, kFindEvenClaimed, kClaim };

    HandleTable();
    Shard& shard_of(const void* abi);
    void insert(const void* abi, const Entry& entry);

    template <class Abi>
    static void set_handle(Abi* abi, std::uint32_t handle) {
        if constexpr (requires { abi->handle; }) abi->handle = handle;
    }
    // Reads the program's struct: only for an address that is in the table.
    template <class Abi>
    static bool is_undamaged(const Abi* abi, const Entry& entry) {
        if constexpr (requires { abi->handle; })
            if (abi->handle != entry.handle) return false;
        if constexpr (requires { abi->context; })
            if (abi->context != entry.context) return false;
        return true;
    }

    template <class Object>
    bool access(const typename Object::Abi* abi, Access access) {
        Shard& shard = shard_of(abi);
        const std::scoped_lock lock(shard.lock);
        const auto found = shard.entries.find(abi);
        if (found == shard.entries.end()) return false;
        Entry& entry = found->second;
        if (entry.kind != Object::kKind || !is_undamaged(abi, entry)) return false;
        if (entry.claimed) return access == Access::kFindEvenClaimed;
        entry.claimed = access == Access::kClaim;
        return true;
    }

    // ThreadSanitizer follows no more than 64 locks at a time, and a fork takes all of these.
    std::array<Shard, 16> shards_;
    std::atomic<std::uint32_t> next_handle_{1};
};

template <class Object>
Object* find(typename Object::Abi* abi) {
    return HandleTable::instance().find<Object>(abi);
}

/// Destroys the object at `abi`: of several callers one does, the others get EINVAL. `release`
/// gives its engine's part back and returns 0, or an errno value on which the object lives on.
template <class Object, class Release>
int destroy(typename Object::Abi* abi, Release&& release) {
    HandleTable& table = HandleTable::instance();
    Object* object = table.claim<Object>(abi);
    if (object == nullptr) return EINVAL;
    if (const int error = release(*object); error != 0) {
        table.restore(abi);
        return error;
    }
    table.remove(abi);
    delete object;
    return 0;
}

/// Enters a new object, takes it over from `object` and gives it to the program. If there is no
/// memory to enter it, `undo` gives its engine's part back.
template <class Object, class Undo>
int publish(std::unique_ptr<Object>& object, typename Object::Abi*& out, Undo&& undo) {
    try {
        HandleTable::instance().add(object.get());
    } catch (const std::bad_alloc&) {
        undo();
        return ENOMEM;
    }
    out = abi_of(object.release());
    return 0;
}

}  // namespace weir::ibverbs
