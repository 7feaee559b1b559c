// SPDX-License-Identifier: Apache-2.0
// memory_kinds HOST0 HOST1 FOLDER: writes into, reads from and sends between every kind of memory
// that a program may register: the heap, the stack, a mapped file (shared and private), memory
// shared with a child, read-only data, a part of a page, a part of a region, a huge region.
#include <fcntl.h>
#include <sys/mman.h>

#include "rig.h"

static const char* folder;
static const char kText[8192] = "read-only data of the program";

/// Side 1 has the memory; side 0 writes to it (unless it is constant), reads it back, sends to it.
static void use(struct side* side, const char* name, void* memory, size_t bytes, bool constant) {
    struct address peer;
    struct ibv_mr* mr = NULL;
    struct ibv_mr* local = make_memory(side, bytes, kAllAccess);
    if (side->index == 1) {
        mr = ibv_reg_mr(side->pd, memory, bytes, constant ? IBV_ACCESS_REMOTE_READ : kAllAccess);
        if (mr == NULL) fprintf(stderr, "%s: not registered: %s\n", name, strerror(errno));
        CHECK(mr != NULL);
    }
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){0}, mr, &peer);
    if (side->index == 1 && !constant) {
        struct ibv_sge sge = sge_of(mr, 0, bytes);
        CHECK_EQ(post_receive(qp, 1, sge), 0);
    }
    meet(side);
    if (side->index == 0) {
        if (!constant) {
            fill(local->addr, bytes, bytes);
            CHECK_EQ(
                post(qp, IBV_WR_RDMA_WRITE, 1, sge_of(local, 0, bytes), peer.buffer, peer.rkey), 0);
            await_success(side->cq);
        }
        memset(local->addr, 0, bytes);
        CHECK_EQ(post(qp, IBV_WR_RDMA_READ, 1, sge_of(local, 0, bytes), peer.buffer, peer.rkey), 0);
        await_success(side->cq);
        if (constant) {
            CHECK(memcmp(local->addr, kText, sizeof(kText)) == 0);
        } else {
            CHECK(filled(local->addr, bytes, bytes));
        }
        meet(side);
        if (!constant) {
            fill(local->addr, bytes, bytes + 1);
            CHECK_EQ(post(qp, IBV_WR_SEND, 1, sge_of(local, 0, bytes), 0, 0), 0);
            await_success(side->cq);
        }
    } else {
        meet(side);
        if (!constant) {
            CHECK_EQ(await_success(side->cq).byte_len, bytes);
            CHECK(filled(memory, bytes, bytes + 1));
        }
    }
    meet(side);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    CHECK_EQ(ibv_dereg_mr(local), 0);
    CHECK_EQ(munmap(local->addr, bytes), 0);
    if (mr != NULL) {
        CHECK_EQ(ibv_dereg_mr(mr), 0);
        // The memory is the program's as before.
        if (!constant) {
            CHECK(filled(memory, bytes, bytes + 1));
            memset(memory, 7, bytes);
        }
    }
    if (side->index == 0) fprintf(stderr, "%s done\n", name);
}

static void* map(size_t bytes, int protection, int flags, int fd) {
    void* memory = mmap(NULL, bytes, protection, flags, fd, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void mapped_file(struct side* side) {
    char path[4096];
    enum { kBytes = 1 << 20 };
    snprintf(path, sizeof(path), "%s/mapped-%d", folder, (int)getpid());
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, kBytes), 0);
    char* shared = map(kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    char* private = map(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
    shared[kBytes - 1] = 1;
    use(side, "a file, shared", shared, kBytes, false);
    if (side->index == 1) {
        char byte = 0;
        CHECK_EQ(pread(fd, &byte, 1, kBytes - 1), 1);
        CHECK_EQ(byte, 7);
    }
    memset(shared, 9, kBytes);
    use(side, "a file, private", private, kBytes, false);
    // What is written into a private mapping is not the file's.
    CHECK_EQ(shared[0], 9);
    CHECK_EQ(unlink(path), 0);
    close(fd);
}

static void body(struct side* side) {
    enum { kSmall = 30000, kHuge = 96 << 20 };
    open_side(side, 64);
    char stack[kSmall];
    use(side, "the stack", stack, kSmall, false);
    char* heap = malloc(kSmall);
    use(side, "the heap", heap, kSmall, false);
    free(heap);
    char* neighbours = malloc(300);
    memset(neighbours, 3, 300);
    use(side, "a part of a page", neighbours + 100, 100, false);
    CHECK(neighbours[99] == 3 && neighbours[200] == 3);
    free(neighbours);
    use(side, "constants", (void*)(uintptr_t)kText, sizeof(kText), true);
    mapped_file(side);
    char* anonymous = map(kSmall, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    use(side, "shared with children", anonymous, kSmall, false);
    char* untouched = map(kSmall, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    use(side, "never touched", untouched, kSmall, false);
    char* locked = map(kSmall, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    madvise(locked, kSmall, MADV_DONTFORK);
    use(side, "kept from children", locked, kSmall, false);
    char* huge = map(kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    use(side, "96 MiB", huge, kHuge, false);
    use(side, "96 MiB again", huge, kHuge, false);
    CHECK_EQ(munmap(huge, kHuge), 0);
    // Two regions over the same pages, one gone before the other.
    char* twice = map(2 * kSmall, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    struct ibv_mr* whole = ibv_reg_mr(side->pd, twice, 2 * kSmall, kAllAccess);
    CHECK(whole != NULL);
    use(side, "a part of a region", twice + 1000, kSmall, false);
    CHECK_EQ(ibv_dereg_mr(whole), 0);
    use(side, "what was a region", twice, 2 * kSmall, false);
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    folder = argv[3];
    return run_sides(argv[1], argv[2], 60, body);
}
