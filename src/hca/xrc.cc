// SPDX-License-Identifier: Apache-2.0
// XRC (IBTA annex A14): one receive side of a host serves many shared receive queues; each message
// names the one that it is for. Domains are this process's: a file makes one domain for all that
// open it, as far as they are of this process.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "hca/engine.h"

namespace weir::hca {

namespace {

XrcDomain* find_domain(Attachment& a, std::uint32_t domain) {
    if (domain == 0 || domain > a.xrc_domains.size()) return nullptr;
    auto& found = a.xrc_domains[domain - 1];
    return found.opens == 0 ? nullptr : &found;
}

}  // namespace

int Hca::open_xrcd(int fd, int flags, std::uint32_t& domain) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    if ((flags & ~(O_CREAT | O_EXCL)) != 0) return EINVAL;
    struct stat status {};
    if (fd >= 0 && fstat(fd, &status) != 0) return errno;
    if (fd < 0 && (flags & O_CREAT) == 0) return EINVAL;
    const std::lock_guard guard(a.lock);
    if (!a.usable()) return EIO;
    auto& domains = a.xrc_domains;
    const auto known = std::find_if(domains.begin(), domains.end(), [&](const XrcDomain& d) {
        return fd >= 0 && d.opens != 0 && d.inode == status.st_ino && d.device == status.st_dev;
    });
    if (known != domains.end()) {
        if ((flags & O_EXCL) != 0) return EINVAL;
        ++known->opens;
        domain = static_cast<std::uint32_t>(known - domains.begin()) + 1;
        return 0;
    }
    if ((flags & O_CREAT) == 0) return EAGAIN;
    auto free = std::find_if(domains.begin(), domains.end(),
                             [](const XrcDomain& d) { return d.opens == 0; });
    if (free == domains.end()) free = domains.insert(domains.end(), XrcDomain{});
    *free = {1, 0, fd >= 0 ? std::uint64_t{status.st_dev} : 0,
             fd >= 0 ? std::uint64_t{status.st_ino} : 0};
    domain = static_cast<std::uint32_t>(free - domains.begin()) + 1;
    return 0;
}

int Hca::close_xrcd(std::uint32_t domain) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    auto* found = find_domain(a, domain);
    if (found == nullptr) return EINVAL;
    if (found->opens == 1 && found->users != 0) return EBUSY;
    --found->opens;
    return 0;
}

int Hca::create_xrc_srq(std::uint32_t pd, std::uint32_t domain, CompletionQueue* cq,
                        ibv_srq_attr& attr, SharedReceiveQueue*& out) {
    const int error = create_srq(pd, attr, out);
    if (error != 0) return error;
    auto& a = *state_->attachment;
    const std::lock_guard guard(a.lock);
    auto* found = find_domain(a, domain);
    if (found == nullptr || cq == nullptr) {
        const auto it = state_->pds.find(pd);
        if (it != state_->pds.end()) --it->second;
        delete out;
        out = nullptr;
        return EINVAL;
    }
    ++found->users;
    auto& state = out->state();
    // The process in the high bits: numbers of one host's processes differ.
    do {
        state.number = (a.process_slot + 1) << 15U | (++a.next_srq & 0x7fffU);
    } while (a.xrc_srqs.count(state.number) != 0);
    state.domain = domain;
    state.cq = &cq->state();
    ++state.cq->users;
    a.xrc_srqs[state.number] = &state;
    return 0;
}

std::uint32_t SharedReceiveQueue::number() const {
    return state_->number;
}

void Attachment::forget_xrc_srq(SharedReceiveQueue::State& srq) {
    if (srq.number == 0) return;
    xrc_srqs.erase(srq.number);
    --srq.cq->users;
    --xrc_domains[srq.domain - 1].users;
    for (auto* qp : qps) {
        if (qp == nullptr || qp->type != IBV_QPT_XRC_RECV || qp->srq != &srq) continue;
        qp->srq = nullptr;
        qp->receive_cq = nullptr;
        qp->receive_open = false;
    }
}

int Hca::open_qp(std::uint32_t domain, std::uint32_t number, QueuePair*& out) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    for (auto* qp : a.qps) {
        if (qp == nullptr || qp->number != number || qp->type != IBV_QPT_XRC_RECV) continue;
        if (qp->domain != domain) return EINVAL;
        ++qp->opens;
        out = qp->self;
        return 0;
    }
    return EINVAL;
}

}  // namespace weir::hca
