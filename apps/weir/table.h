// SPDX-License-Identifier: Apache-2.0
// What a command has to say, once: as columns and rows, printed as a table for people or as JSON
// for programs. Keys are snake_case with the unit last; titles are what people read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace weir::cli {

struct Table;
/// Text, a count, a truth, or a table within (JSON only). Nothing is "-" and null.
using Cell = std::variant<std::monostate, std::string, std::uint64_t, bool, std::shared_ptr<Table>>;

struct Column {
    std::string key;
    std::string title;
    enum class Show : std::uint8_t { kAlways, kWide, kJsonOnly } show = Show::kAlways;
};

struct Table {
    std::string schema;  ///< "weir.link.list/v1"; only for the outermost.
    std::string items;   ///< What a row is, in the plural: "links".
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;
};

/// Prints to stdout: one header line, no boxes, numbers to the right.
void print_table(const Table& table, std::string_view format);

/// The table as text, as print_table prints it.
std::string format_table(const Table& table, std::string_view format);

}  // namespace weir::cli
