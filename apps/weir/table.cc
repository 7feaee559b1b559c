// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <fmt/core.h>

#include <algorithm>

#include <nlohmann/json.hpp>

namespace weir::cli {
namespace {

using Json = nlohmann::ordered_json;

Json rows_of(const Table& table);

Json value_of(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    if (const auto* number = std::get_if<std::uint64_t>(&cell)) return *number;
    if (const auto* truth = std::get_if<bool>(&cell)) return *truth;
    if (const auto* inner = std::get_if<std::shared_ptr<Table>>(&cell)) return rows_of(**inner);
    return nullptr;
}

Json rows_of(const Table& table) {
    Json rows = Json::array();
    for (const auto& row : table.rows) {
        Json object = Json::object();
        for (std::size_t c = 0; c < row.size(); ++c) {
            object[table.columns[c].key] = value_of(row[c]);
        }
        rows.push_back(std::move(object));
    }
    return rows;
}

std::string text_of(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    if (const auto* number = std::get_if<std::uint64_t>(&cell)) return fmt::format("{}", *number);
    if (const auto* truth = std::get_if<bool>(&cell)) return *truth ? "yes" : "no";
    return "-";
}

bool shown(const Column& column, bool wide) {
    return column.show == Column::Show::kAlways || (wide && column.show == Column::Show::kWide);
}

std::string lines_of(const Table& table, bool wide) {
    struct Shown {
        std::size_t index;
        std::size_t width;
        bool right;
    };
    std::vector<Shown> columns;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
        if (!shown(table.columns[c], wide)) continue;
        Shown column{c, table.columns[c].title.size(), !table.rows.empty()};
        for (const auto& row : table.rows) {
            column.width = std::max(column.width, text_of(row[c]).size());
            column.right = column.right && std::holds_alternative<std::uint64_t>(row[c]);
        }
        columns.push_back(column);
    }
    std::string out;
    const auto put = [&](auto&& text_at) {
        std::string line;
        for (const auto& column : columns) {
            const std::string text = text_at(column.index);
            line += line.empty() ? "" : "  ";
            line += column.right ? fmt::format("{:>{}}", text, column.width)
                                 : fmt::format("{:<{}}", text, column.width);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    };
    put([&](std::size_t c) { return table.columns[c].title; });
    for (const auto& row : table.rows) {
        put([&](std::size_t c) { return text_of(row[c]); });
    }
    return out;
}

}  // namespace

std::string format_table(const Table& table, std::string_view format) {
    if (format != "json") {
        return lines_of(table, format == "wide");
    }
    Json document;
    document["schema"] = table.schema;
    document[table.items] = rows_of(table);
    return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_table(const Table& table, std::string_view format) {
    fmt::print("{}", format_table(table, format));
}

}  // namespace weir::cli
