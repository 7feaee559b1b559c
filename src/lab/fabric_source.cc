// SPDX-License-Identifier: Apache-2.0
#include "lab/fabric_source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "runtime/real/system_error.h"
#include "topology/fabric_file.h"
#include "topology/netlist.h"

namespace weir::lab {
namespace {

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

Result<std::string> read_text(const std::string& path) {
    const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "re"));
    if (!file) {
        return runtime::fail_errno(errno, path);
    }
    std::string text;
    std::array<char, 65536> part;
    while (const std::size_t taken = std::fread(part.data(), 1, part.size(), file.get())) {
        text.append(part.data(), taken);
        if (text.size() > kSourceBytesMax) {
            return fail(ErrorCode::kInvalid, path + ": too large for a fabric file");
        }
    }
    if (std::ferror(file.get()) != 0) {
        return runtime::fail_errno(errno, path);
    }
    return text;
}

}  // namespace

bool looks_like_netlist(std::string_view text) {
    constexpr std::array<std::string_view, 6> kOpenings{
        "switchguid=", "caguid=", "vendid=", "Switch", "Ca", "Hca"};
    for (std::size_t at = 0; at < text.size();) {
        const auto end = std::min(text.find('\n', at), text.size());
        const auto line = text.substr(at, end - at);
        for (const auto opening : kOpenings) {
            // "Ca" begins a netlist's line only before white space, a guid only before '='.
            if (line.starts_with(opening) &&
                (opening.back() == '=' ||
                 (line.size() > opening.size() &&
                  (line[opening.size()] == '\t' || line[opening.size()] == ' ')))) {
                return line.find(':') == std::string_view::npos || line.find('"') < line.find(':');
            }
        }
        at = end + 1;
    }
    return false;
}

Result<FabricSource> read_fabric_source(const std::string& path) {
    FabricSource source;
    WEIR_TRY(source.text, read_text(path));
    if (looks_like_netlist(source.text)) {
        WEIR_TRY(topology::Netlist netlist, topology::parse_netlist(source.text, path));
        source.fabric = std::move(netlist.fabric);
        source.notes = std::move(netlist.notes);
    } else {
        WEIR_TRY(source.fabric, topology::decode_fabric(source.text, path));
    }
    return source;
}

}  // namespace weir::lab
