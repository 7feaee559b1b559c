// SPDX-License-Identifier: Apache-2.0
// For "did you mean ...?": the known word closest to a mistyped one.
#pragma once

#include <span>
#include <string_view>

namespace weir::topology {

/// The number of insertions, deletions and substitutions that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The closest of `known`, or "" if none is close enough to be what was meant (more than a third of
/// the word's letters differ). The first of equally close ones wins.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace weir::topology
