// SPDX-License-Identifier: Apache-2.0
// An MPI program that knows what every byte must be: collectives and point-to-point messages of 0 B
// to 4 MiB, each checked. Exit code 1 and a line on stderr at the first difference.
//
//   mpi_check [ROUNDS]         checks
//   mpi_check time SIZE COUNT  prints the median of so many all-reduces, in microseconds
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank;
static int rank_count;

static const size_t kSizes[] = {0, 1, 8, 1000, 4096, 65536, 65537, 1 << 20, 4 << 20};
#define SIZE_COUNT (sizeof kSizes / sizeof kSizes[0])

static unsigned char byte_of(int from, int to, size_t at, int round) {
    return (unsigned char)(at * 31 + (size_t)from * 7 + (size_t)to * 13 + (size_t)round * 3 + 1);
}

static void fill(unsigned char* data, size_t size, int from, int to, int round) {
    for (size_t i = 0; i < size; ++i)
        data[i] = byte_of(from, to, i, round);
}

static void check(const char* what, const unsigned char* data, size_t size, int from, int to,
                  int round) {
    for (size_t i = 0; i < size; ++i) {
        if (data[i] == byte_of(from, to, i, round)) continue;
        fprintf(stderr, "rank %d: %s of %zu B from %d: byte %zu is %u, not %u\n", rank, what, size,
                from, i, data[i], byte_of(from, to, i, round));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char* room(size_t size) {
    unsigned char* data = malloc(size + 1);
    if (data == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
    memset(data, 0xee, size + 1);
    return data;
}

static void allreduce(size_t size, int round) {
    const int count = (int)(size / sizeof(long));
    long* mine = (long*)room(size);
    long* sum = (long*)room(size);
    for (int i = 0; i < count; ++i)
        mine[i] = (long)(rank + 1) * (i + round);
    MPI_Allreduce(mine, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    const long ranks = (long)rank_count * (rank_count + 1) / 2;
    for (int i = 0; i < count; ++i) {
        if (sum[i] == ranks * (i + round)) continue;
        fprintf(stderr, "rank %d: all-reduce of %zu B: sum %d is %ld\n", rank, size, i, sum[i]);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    free(mine);
    free(sum);
}

static void bcast(size_t size, int root, int round) {
    unsigned char* data = room(size);
    if (rank == root) fill(data, size, root, 0, round);
    MPI_Bcast(data, (int)size, MPI_BYTE, root, MPI_COMM_WORLD);
    check("broadcast", data, size, root, 0, round);
    free(data);
}

static void gather(size_t size, int root, int round) {
    unsigned char* mine = room(size);
    unsigned char* all = room(size * (size_t)rank_count);
    fill(mine, size, rank, root, round);
    MPI_Gather(mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, root, MPI_COMM_WORLD);
    for (int from = 0; rank == root && from < rank_count; ++from)
        check("gather", all + size * (size_t)from, size, from, root, round);
    free(mine);
    free(all);
}

static void alltoall(size_t size, int round) {
    unsigned char* out = room(size * (size_t)rank_count);
    unsigned char* in = room(size * (size_t)rank_count);
    for (int to = 0; to < rank_count; ++to)
        fill(out + size * (size_t)to, size, rank, to, round);
    MPI_Alltoall(out, (int)size, MPI_BYTE, in, (int)size, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < rank_count; ++from)
        check("all-to-all", in + size * (size_t)from, size, from, rank, round);
    free(out);
    free(in);
}

static void sendrecv(size_t size, int round) {
    const int right = (rank + 1) % rank_count;
    const int left = (rank + rank_count - 1) % rank_count;
    unsigned char* out = room(size);
    unsigned char* in = room(size);
    fill(out, size, rank, right, round);
    MPI_Status status;
    MPI_Sendrecv(out, (int)size, MPI_BYTE, right, round, in, (int)size, MPI_BYTE, left, round,
                 MPI_COMM_WORLD, &status);
    int got = -1;
    MPI_Get_count(&status, MPI_BYTE, &got);
    if (got != (int)size) {
        fprintf(stderr, "rank %d: %d of %zu B came from %d\n", rank, got, size, left);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    check("message", in, size, left, rank, round);
    free(out);
    free(in);
}

static void check_all(int rounds) {
    for (int round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < SIZE_COUNT; ++i) {
            const int root = (round + (int)i) % rank_count;
            sendrecv(kSizes[i], round);
            bcast(kSizes[i], root, round);
            allreduce(kSizes[i], round);
            gather(kSizes[i], root, round);
            // Each rank holds it once for every other.
            if (kSizes[i] <= (1 << 20)) alltoall(kSizes[i], round);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const char* host = getenv("WEIR_HOST");
    printf("rank %d of %d on %s: all bytes right\n", rank, rank_count, host == NULL ? "?" : host);
}

static int by_value(const void* a, const void* b) {
    const double x = *(const double*)a;
    const double y = *(const double*)b;
    return x < y ? -1 : x > y;
}

static void measure(size_t size, int count) {
    char* in = calloc(1, size + 1);
    char* out = calloc(1, size + 1);
    double* times = malloc((size_t)count * sizeof *times);
    if (in == NULL || out == NULL || times == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < 200; ++i)
        MPI_Allreduce(in, out, (int)size, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) {
        const double start = MPI_Wtime();
        MPI_Allreduce(in, out, (int)size, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
        times[i] = (MPI_Wtime() - start) * 1e6;
    }
    qsort(times, (size_t)count, sizeof *times, by_value);
    if (rank == 0) printf("allreduce_us %.3f\n", times[count / 2]);
    free(in);
    free(out);
    free(times);
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &rank_count);
    if (argc == 4 && strcmp(argv[1], "time") == 0) {
        measure((size_t)atol(argv[2]), atoi(argv[3]));
    } else {
        check_all(argc > 1 ? atoi(argv[1]) : 1);
    }
    MPI_Finalize();
    return 0;
}
