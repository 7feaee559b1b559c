// SPDX-License-Identifier: Apache-2.0
// What all commands of the CLI share: how they are registered, what the exit codes mean, how errors
// are worded, and how a command finds the fabric that it is about.
//
// A command's callback only notes what is to be done (Session::action); main does it once the whole
// command line has been understood. stdout is for data, stderr for everything else.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "runtime/real/attach_client.h"

namespace weir::cli {

enum ExitCode : int {
    kOk = 0,
    kNo = 1,           ///< The answer is no: a check failed.
    kUsage = 2,        ///< Wrong usage, or an invalid file.
    kUnreachable = 3,  ///< No such fabric, or its daemon does not answer.
    kDenied = 4,
    kRefused = 5,  ///< Unsafe or conflicting, or no room; the message says what to do.
    kTimedOut = 6,
    kInternal = 70,
    kInterrupted = 130,
};

struct Session {
    std::function<int()> action;       ///< What the chosen command does.
    std::vector<std::string> program;  ///< Words after "--".
    std::string color = "auto";
};

/// Registers a command that runs `action`.
CLI::App* add_command(CLI::App& parent, const char* name, const char* help, Session& session,
                      std::function<int()> action);

/// --name, with its environment variable.
void add_name_option(CLI::App& command, std::string& name);

/// -o; `wide` says whether there is more to show than fits.
void add_format_option(CLI::App& command, std::string& format, bool wide = false);

/// Prints "error: ..." and the hint, and gives the exit code that belongs to the error.
int report(const Error& error);
/// The same, for errors in reaching a fabric.
int report_unreachable(const Error& error);
void print_warning(std::string_view text);
void print_hint(std::string_view text);

/// True if words may be coloured on this stream (1 or 2).
bool use_color(const Session& session, int stream);

/// The name to be used: what was given, else "default", else the only fabric that is up.
std::string choose_fabric(const std::string& given);

/// Connects and maps the fabric for reading.
Result<runtime::AttachClient> open_fabric(const std::string& given_name);

/// Runs `body` with an observed fabric, or reports why there is none.
int with_fabric(const std::string& given_name,
                const std::function<int(runtime::AttachClient&)>& body);

// The command groups, each in the file of its name.
void add_fabric_commands(CLI::App& app, Session& session);     // up, down, status
void add_run_command(CLI::App& app, Session& session);         // run
void add_link_commands(CLI::App& app, Session& session);       // link
void add_node_commands(CLI::App& app, Session& session);       // host, switch, lane
void add_topology_commands(CLI::App& app, Session& session);   // topology
void add_doctor_command(CLI::App& app, Session& session);      // doctor
void add_completion_command(CLI::App& app, Session& session);  // completion, version

}  // namespace weir::cli
