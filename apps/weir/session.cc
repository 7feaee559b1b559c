// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lab/lifecycle.h"
#include "library_folder.h"
#include "runtime/real/child_process.h"

namespace weir::cli {
namespace {

constexpr const char* kDefaultName = "default";

int exit_code_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalid:
        case ErrorCode::kNotFound:
            return kUsage;
        case ErrorCode::kUnreachable:
            return kUnreachable;
        case ErrorCode::kDenied:
            return kDenied;
        case ErrorCode::kExists:
        case ErrorCode::kBusy:
        case ErrorCode::kNoSpace:
            return kRefused;
        case ErrorCode::kSystem:
            return kInternal;
    }
    return kInternal;
}

}  // namespace

std::string library_folder() {
    const std::string self = runtime::own_executable();
    const auto bin = self.rfind('/');
    return bin == std::string::npos ? std::string() : self.substr(0, bin) + "/../lib/weir";
}

CLI::App* add_command(CLI::App& parent, const char* name, const char* help, Session& session,
                      std::function<int()> action) {
    CLI::App* command = parent.add_subcommand(name, help);
    command->callback([&session, action = std::move(action)] { session.action = action; });
    return command;
}

void add_name_option(CLI::App& command, std::string& name) {
    command.add_option("--name", name, "Name of the fabric (else \"default\", or the only one up)")
        ->envname("WEIR_NAME")
        ->type_name("NAME");
}

void add_format_option(CLI::App& command, std::string& format, bool wide) {
    std::vector<std::string> formats{"table", "json"};
    if (wide) formats.emplace_back("wide");
    command.add_option("-o,--output", format, "Form of the output")
        ->check(CLI::IsMember(formats))
        ->type_name(wide ? "table|wide|json" : "table|json")
        ->capture_default_str();
}

int report(const Error& error) {
    fmt::print(stderr, "error: {}\n", error.context);
    if (!error.hint.empty()) {
        print_hint(error.hint);
    }
    return exit_code_of(error.code);
}

int report_unreachable(const Error& error) {
    const int code = report(error);
    return error.code == ErrorCode::kNotFound ? kUnreachable : code;
}

void print_warning(std::string_view text) {
    fmt::print(stderr, "warning: {}\n", text);
}

void print_hint(std::string_view text) {
    fmt::print(stderr, "hint: {}\n", text);
}

bool use_color(const Session& session, int stream) {
    if (session.color != "auto") {
        return session.color == "always";
    }
    const char* no_color = std::getenv("NO_COLOR");
    return (no_color == nullptr || no_color[0] == '\0') && ::isatty(stream) != 0;
}

std::string choose_fabric(const std::string& given) {
    if (!given.empty()) {
        return given;
    }
    auto fabrics = lab::list_fabrics();
    if (fabrics) {
        std::erase_if(*fabrics, [](const lab::FabricState& fabric) { return !fabric.up; });
        if (fabrics->size() == 1) {
            return fabrics->front().name;
        }
    }
    return kDefaultName;
}

Result<runtime::AttachClient> open_fabric(const std::string& given_name) {
    WEIR_TRY(runtime::AttachClient client,
             runtime::AttachClient::connect(choose_fabric(given_name)));
    WEIR_TRY_VOID(client.observe());
    return client;
}

int with_fabric(const std::string& given_name,
                const std::function<int(runtime::AttachClient&)>& body) {
    auto client = open_fabric(given_name);
    return client ? body(*client) : report_unreachable(client.error());
}

}  // namespace weir::cli
