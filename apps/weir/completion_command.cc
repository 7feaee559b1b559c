// SPDX-License-Identifier: Apache-2.0
// weir completion, weir version. The scripts are made from the commands themselves, so they cannot
// fall behind; they know words, not names of what is up.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>

#include "session.h"
#include "version.h"

namespace weir::cli {
namespace {

/// "weir link" → what may come next.
struct Choice {
    std::string word;
    std::string help;
};
using Choices = std::map<std::string, std::vector<Choice>>;

void walk(const CLI::App& app, const std::string& path, Choices& choices) {
    auto& here = choices[path];
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        here.push_back({command->get_name(), command->get_description()});
        walk(*command, path + " " + command->get_name(), choices);
    }
    for (const auto* option : app.get_options()) {
        for (const auto& name : option->get_lnames()) {
            here.push_back({"--" + name, option->get_description()});
        }
    }
}

std::string words_of(const std::vector<Choice>& choices) {
    std::string words;
    for (const auto& choice : choices) {
        words += (words.empty() ? "" : " ") + choice.word;
    }
    return words;
}

/// The case branches that both shells share: $path is the command so far.
std::string branches(const Choices& choices) {
    std::string out;
    for (const auto& [path, next] : choices) {
        out += fmt::format("        \"{}\") words=\"{}\" ;;\n", path, words_of(next));
    }
    return out;
}

std::string bash_script(const Choices& choices) {
    return fmt::format(R"(# bash completion for weir: source <(weir completion bash)
_weir() {{
    local path="weir" words="" word i last="${{COMP_WORDS[COMP_CWORD]}}"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        [[ "$word" == "--" ]] && {{ COMPREPLY=($(compgen -c -f -- "$last")); return; }}
        [[ "$word" == -* ]] || path="$path $word"
    done
    case "$path" in
{}        *) COMPREPLY=($(compgen -f -- "$last")); return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$last"))
    [[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "$last"))
}}
complete -o filenames -F _weir weir
)",
                       branches(choices));
}

std::string zsh_script(const Choices& choices) {
    return fmt::format(R"(#compdef weir
# zsh completion for weir: source <(weir completion zsh)
_weir() {{
    local path_so_far="weir" words_next="" word i
    for ((i = 2; i < CURRENT; i++)); do
        word="${{words[i]}}"
        [[ "$word" == -* ]] || path_so_far="$path_so_far $word"
    done
    case "$path_so_far" in
{}        *) _files; return ;;
    esac
    compadd -- ${{=words_next}} || _files
}}
compdef _weir weir
)",
                       [&] {
                           std::string text = branches(choices);
                           for (std::size_t at = 0;
                                (at = text.find("words=", at)) != std::string::npos; at += 11) {
                               text.replace(at, 6, "words_next=");
                           }
                           return text;
                       }());
}

std::string fish_script(const Choices& choices) {
    std::string out = R"(# fish completion for weir: weir completion fish | source
function __weir_path
    set -l words (commandline -opc)
    string match -v -- '-*' $words | string join ' '
end
)";
    for (const auto& [path, next] : choices) {
        for (const auto& choice : next) {
            const bool option = choice.word.starts_with("--");
            std::string help = choice.help;
            std::replace(help.begin(), help.end(), '\'', ' ');
            out += fmt::format("complete -c weir -n 'test (__weir_path) = \"{}\"' {} {} -d '{}'\n",
                               path, option ? "-l" : "-f -a",
                               option ? choice.word.substr(2) : choice.word, help);
        }
    }
    return out;
}

int print_script(const CLI::App& app, const std::string& shell) {
    Choices choices;
    walk(app, "weir", choices);
    fmt::print("{}", shell == "bash"  ? bash_script(choices)
                     : shell == "zsh" ? zsh_script(choices)
                                      : fish_script(choices));
    return kOk;
}

}  // namespace

void add_completion_command(CLI::App& app, Session& session) {
    auto shell = std::make_shared<std::string>();
    auto* command = add_command(app, "completion", "Print a completion script for a shell", session,
                                [&app, shell] { return print_script(app, *shell); });
    command->add_option("SHELL", *shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}))
        ->type_name("");
    add_command(app, "version", "Print the version", session, [] {
        fmt::print("weir {}\n", kVersion);
        return kOk;
    });
}

}  // namespace weir::cli
