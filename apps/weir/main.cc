// SPDX-License-Identifier: Apache-2.0
// weir: the command line. Wiring only: what a command does is in its group's file.
#include <fmt/core.h>

#include <algorithm>
#include <exception>

#include "session.h"
#include "topology/nearest_word.h"
#include "version.h"

namespace weir::cli {
namespace {

/// The command that was reached on the way to the error.
const CLI::App& deepest(const CLI::App& app) {
    const CLI::App* at = &app;
    while (!at->get_subcommands().empty()) {
        at = at->get_subcommands().front();
    }
    return *at;
}

std::string full_name(const CLI::App& app) {
    const CLI::App* parent = app.get_parent();
    return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

std::string help_of(const CLI::App& app) {
    return app.help(app.get_parent() == nullptr ? std::string() : full_name(*app.get_parent()));
}

std::vector<std::string> known_words(const CLI::App& app, bool options) {
    std::vector<std::string> words;
    if (options) {
        for (const auto* option : app.get_options()) {
            for (const auto& name : option->get_lnames())
                words.push_back("--" + name);
        }
        return words;
    }
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        words.push_back(command->get_name());
    }
    return words;
}

int unknown_word(const CLI::App& command, const std::string& word) {
    const bool is_option = word.starts_with("-");
    const auto words = known_words(command, is_option);
    if (!is_option && words.empty()) {
        fmt::print(stderr, "error: {}: \"{}\" was not expected\n", full_name(command), word);
        print_hint(fmt::format("{} --help", full_name(command)));
        return kUsage;
    }
    fmt::print(stderr, "error: {} has no {} \"{}\"\n", full_name(command),
               is_option ? "option" : "command", word);
    const std::vector<std::string_view> views(words.begin(), words.end());
    const auto nearest = topology::nearest_word(word, views);
    print_hint(nearest.empty() ? fmt::format("{} --help", full_name(command))
                               : fmt::format("did you mean \"{}\"?", nearest));
    return kUsage;
}

int on_parse_error(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App& command = deepest(app);
    // Extras are checked before anything else could be wrong with the commands above.
    const auto extras = app.remaining(true);
    if (!extras.empty()) {
        return unknown_word(command, extras.front());
    }
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
        !known_words(command, false).empty()) {
        fmt::print(stderr, "{}", help_of(command));
        return kUsage;
    }
    fmt::print(stderr, "error: {}\n", error.what());
    print_hint(fmt::format("{} --help", full_name(command)));
    return kUsage;
}

void add_all(CLI::App& app, Session& session) {
    app.require_subcommand(1);
    app.fallthrough();
    app.add_option("--color", session.color, "Colour: auto, always or never")
        ->check(CLI::IsMember({"auto", "always", "never"}))
        ->envname("WEIR_COLOR")
        ->type_name("WHEN");
    app.set_version_flag("--version", std::string("weir ") + kVersion);
    app.footer(
        "Exit codes: 0 yes, 1 no, 2 usage, 3 unreachable, 4 denied, 5 refused, 6 timed out.\n"
        "Manual: man weir");
    add_fabric_commands(app, session);
    add_run_command(app, session);
    add_link_commands(app, session);
    add_node_commands(app, session);
    add_topology_commands(app, session);
    add_doctor_command(app, session);
    add_completion_command(app, session);
}

int run(int argc, char** argv) {
    Session session;
    CLI::App app{"Weir: an InfiniBand-class fabric in software", "weir"};
    add_all(app, session);
    // What comes after "--" belongs to the program that is run, whatever it looks like.
    char** const end = argv + argc;
    char** const dashes = std::find_if(
        argv + 1, end, [](const char* word) { return std::string_view(word) == "--"; });
    if (dashes != end) {
        session.program.assign(dashes + 1, end);
    }
    try {
        app.parse(static_cast<int>(dashes - argv), argv);
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", help_of(deepest(app)));
        return kOk;
    } catch (const CLI::Success& answered) {
        return app.exit(answered);
    } catch (const CLI::ParseError& error) {
        return on_parse_error(app, error);
    }
    return session.action ? session.action() : kUsage;
}

}  // namespace
}  // namespace weir::cli

int main(int argc, char** argv) {
    try {
        return weir::cli::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "error: internal: {}\n", error.what());
        return weir::cli::kInternal;
    }
}
