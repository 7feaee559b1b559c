// SPDX-License-Identifier: Apache-2.0
// fork_after_close: registers a piece of the heap, closes the device, and forks. What the device
// did to the pages of the heap outlives it: the child must have its own all the same.
#include <sys/wait.h>

#include "rig.h"

int main(void) {
    enum { kBytes = 6000 };
    struct side side = {0};
    open_side(&side, 16);
    char* piece = malloc(kBytes);
    CHECK(piece != NULL);
    struct ibv_mr* mr = ibv_reg_mr(side.pd, piece, kBytes, kAllAccess);
    CHECK(mr != NULL);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_destroy_cq(side.cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(side.events), 0);
    CHECK_EQ(ibv_dealloc_pd(side.pd), 0);
    CHECK_EQ(ibv_close_device(side.context), 0);
    fill(piece, kBytes, 1);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(filled(piece, kBytes, 1));
        memset(piece, 0xee, kBytes);
        for (int i = 0; i < 1000; ++i)
            free(malloc((size_t)i * 8));
        _exit(0);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(filled(piece, kBytes, 1));
    free(piece);
    return 0;
}
