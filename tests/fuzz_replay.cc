// SPDX-License-Identifier: Apache-2.0
// Stands in for libFuzzer's main where the compiler has none: runs every file of the corpus folders
// named on the command line, then a fixed number of seeded mutations of them. Repeatable; a crash
// is the failure.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr int kMutations = 20000;
using Bytes = std::vector<std::uint8_t>;

void mutate(Bytes& bytes, weir::Rng& rng) {
    const auto edits = rng.below(8) + 1;
    for (std::uint64_t i = 0; i < edits; ++i) {
        const auto at = bytes.empty() ? 0 : rng.below(bytes.size());
        const auto kind = rng.below(4);
        const auto value = static_cast<std::uint8_t>(rng.below(256));
        const auto where = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        if (bytes.empty() || kind == 0) {
            bytes.insert(where, value);
        } else if (kind == 1) {
            bytes.erase(where);
        } else if (kind == 2) {
            bytes[at] = value;
        } else {
            bytes.resize(at);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<Bytes> corpus;
    for (int i = 1; i < argc; ++i) {
        for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
            std::ifstream file(entry.path(), std::ios::binary);
            corpus.emplace_back(std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>());
        }
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "fuzz_replay: no seeds given\n");
        return 1;
    }
    for (const auto& seed : corpus)
        LLVMFuzzerTestOneInput(seed.data(), seed.size());
    weir::Rng rng(1);
    for (int i = 0; i < kMutations; ++i) {
        Bytes bytes = corpus[rng.below(corpus.size())];
        mutate(bytes, rng);
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
    std::printf("fuzz_replay: %zu seeds, %d mutations\n", corpus.size(), kMutations);
    return 0;
}
