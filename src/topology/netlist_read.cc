// SPDX-License-Identifier: Apache-2.0
// Two passes: first the lines, into nodes and what each says of its ports; then the ports' stories
// are laid side by side, which gives the links.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include "topology/netlist.h"
#include "topology/netlist_line.h"

namespace weir::topology {

namespace {

constexpr std::size_t kNoteLimit = 100;
constexpr std::size_t kTextLimit = 64;  // Bytes of a NodeDescription attribute.

/// A port line, kept until all nodes are known.
struct PortStory {
    NodeIndex node;
    std::uint32_t line;
    PortLine said;
};

class NetlistReader {
  public:
    explicit NetlistReader(std::string_view filename) : filename_(filename) {}

    Result<Netlist> read(std::string_view text) {
        while (!text.empty()) {
            ++line_;
            const std::size_t end = std::min(text.find('\n'), text.size());
            WEIR_TRY_VOID(on_line(trimmed(text.substr(0, end))));
            text.remove_prefix(std::min(end + 1, text.size()));
        }
        if (fabric_.nodes.empty()) {
            return fail(ErrorCode::kInvalid, fmt::format("{}: no Switch or Ca in it", filename_),
                        "give a file as ibnetdiscover prints it");
        }
        WEIR_TRY_VOID(resolve_nodes());
        WEIR_TRY_VOID(resolve_links());
        fabric_.finish_links();
        if (const auto valid = fabric_.validate(); !valid) {
            return fail(ErrorCode::kInvalid,
                        fmt::format("{}: {}", filename_, valid.error().context));
        }
        if (notes_left_out_ > 0)
            notes_.push_back(fmt::format("{}: {} more notes", filename_, notes_left_out_));
        return Netlist{std::move(fabric_), std::move(notes_)};
    }

  private:
    [[nodiscard]] tl::unexpected<Error> error_at(std::uint32_t line, std::string_view what,
                                                 std::string hint = {}) const {
        return fail(ErrorCode::kInvalid, fmt::format("{}:{}: {}", filename_, line, what),
                    std::move(hint));
    }
    [[nodiscard]] tl::unexpected<Error> error(std::string_view what) const {
        return error_at(line_, what);
    }
    void note_at(std::uint32_t line, std::string_view what) {
        if (notes_.size() < kNoteLimit) {
            notes_.push_back(fmt::format("{}:{}: {}", filename_, line, what));
        } else {
            ++notes_left_out_;
        }
    }

    // First pass.

    Result<void> on_line(std::string_view line) {
        if (line.starts_with("# weir ")) return on_extension(LineCursor(line.substr(7)));
        if (line.empty() || line.front() == '#' || is_ignored_line(line)) return {};
        if (line.front() == '[') {
            if (const auto port = parse_port_line(line)) return on_port(*port);
            return error(
                fmt::format("not a port line: \"{}\"; one is [1] \"S-...\"[2]", shown(line)));
        }
        if (const auto node = parse_node_line(line)) return on_node(*node);
        if (const auto guids = parse_guid_line(line)) {
            pending_guids_ = *guids;
            return {};
        }
        if (is_terminal_noise(line)) {
            note_at(line_, fmt::format("left out, taken for a terminal's: \"{}\"", shown(line)));
            return {};
        }
        return error(fmt::format("not a line of a netlist: \"{}\"", shown(line)));
    }

    Result<void> on_node(const NodeLine& said) {
        if (said.id.empty() || said.id.size() > kTextLimit)
            return error(fmt::format("the node's id is empty or longer than {}", kTextLimit));
        if (said.port_count == 0 || said.port_count > kPortLimit) {
            return error(fmt::format("\"{}\" has {} ports; a node has 1 to {}", shown(said.id),
                                     said.port_count, kPortLimit));
        }
        const auto index = static_cast<NodeIndex>(fabric_.nodes.size());
        const auto [first, fresh] = by_id_.emplace(said.id, index);
        if (!fresh) {
            return error(fmt::format("node \"{}\" was described before, on line {}", shown(said.id),
                                     lines_[first->second]));
        }
        return add_node(said);
    }

    Result<void> add_node(const NodeLine& said) {
        if (fabric_.nodes.size() >= kNodeLimit)
            return error(fmt::format("more than {} nodes", kNodeLimit));
        Node node = start_node(said);
        if (pending_guids_.node != 0) {
            if (node.guid != 0 && node.guid != pending_guids_.node) {
                note_at(line_, fmt::format("\"{}\" has GUID {:#x}, its id says otherwise",
                                           shown(said.id), pending_guids_.node));
            }
            node.guid = pending_guids_.node;
        }
        if (node.is_switch()) {
            const std::uint64_t guid = pending_guids_.port != 0 ? pending_guids_.port : node.guid;
            const auto lmc = static_cast<std::uint8_t>(said.comment.lmc & 7U);
            node.end_ports.push_back({.guid = guid, .lid = said.comment.lid, .lmc = lmc});
        } else {
            for (PortNumber port = 1; port <= node.port_count; ++port)
                node.end_ports.push_back({.guid = node.guid + port});
        }
        pending_guids_ = {};
        fabric_.nodes.push_back(std::move(node));
        lines_.push_back(line_);
        return {};
    }

    /// Kind, name, description, ports; the GUID if the id is made of it ("S-00000002c90300a1").
    [[nodiscard]] static Node start_node(const NodeLine& said) {
        Node node;
        node.kind = said.kind;
        node.name = said.id;
        node.port_count = said.port_count;
        node.description = said.comment.description.substr(0, kTextLimit);
        for (char& c : node.description) {
            if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
        }
        LineCursor at(said.id);
        if (at.take("S-") || at.take("H-")) {
            const bool is_guid = at.rest().size() == 16;
            const auto guid = at.take_hex();
            if (guid && is_guid && at.at_end()) node.guid = *guid;
        }
        return node;
    }

    Result<void> on_port(const PortLine& said) {
        if (fabric_.nodes.empty())
            return error("a port before the first Switch or Ca: whose is it?");
        Node& node = fabric_.nodes.back();
        if (said.port == 0 || said.port > node.port_count) {
            return error(fmt::format("port [{}] does not exist (\"{}\" has ports 1 ... {})",
                                     said.port, shown(node.name), node.port_count));
        }
        if (said.peer_port == 0 || said.peer_port > kPortLimit) {
            return error(fmt::format("the peer's port [{}] is not within 1 ... {}", said.peer_port,
                                     kPortLimit));
        }
        if (!node.is_switch()) {
            EndPort& end_port = node.end_ports[said.port - 1];
            if (said.guid) end_port.guid = *said.guid;
            end_port.lid = said.comment.own_lid;
            end_port.lmc = static_cast<std::uint8_t>(said.comment.own_lmc & 7U);
        }
        if (said.comment.unknown_rate)
            note_at(line_, "the link's rate has no known name; taken as not told");
        stories_.push_back({static_cast<NodeIndex>(fabric_.nodes.size() - 1), line_, said});
        return {};
    }

    /// "# weir fabric name=..." and its like: what the plain form can't say.
    Result<void> on_extension(LineCursor at) {
        const std::string_view subject = at.take_word();
        Node* const node = fabric_.nodes.empty() ? nullptr : &fabric_.nodes.back();
        if (subject != "fabric" && node == nullptr)
            return error("a \"# weir\" line before the node it is about");
        EndPort* end_port = nullptr;
        if (subject == "port") {
            at.skip_blanks();
            const std::uint32_t port = at.take_number().value_or(0);
            if (node->is_switch() || port == 0 || port > node->port_count)
                return error("a \"# weir port\" line of no port of an HCA");
            end_port = &node->end_ports[port - 1];
        }
        for (at.skip_blanks(); !at.at_end(); at.skip_blanks()) {
            const auto fact = take_fact(at);
            const bool good = fact && (subject == "fabric" ? apply_fabric_fact(*fact, fabric_)
                                       : subject == "node" ? apply_node_fact(*fact, *node)
                                       : subject == "port" ? apply_port_fact(*fact, *end_port)
                                                           : false);
            if (!good) {
                return error(fmt::format("cannot read \"{}\" of a \"# weir\" line",
                                         shown(fact ? fact->key : at.rest())));
            }
        }
        return {};
    }

    // Second pass, nodes: those that only their neighbours tell of, hosts, missing GUIDs.

    Result<void> resolve_nodes() {
        described_count_ = fabric_.nodes.size();
        for (const PortStory& story : stories_) {
            const auto known = by_id_.find(story.said.peer_id);
            if (known == by_id_.end()) {
                WEIR_TRY_VOID(imply_node(story));
            } else if (known->second >= described_count_) {
                grow_implied(known->second, story.said);
            }
        }
        for (NodeIndex i = 0; i < fabric_.nodes.size(); ++i) {
            Node& node = fabric_.nodes[i];
            if (!node.is_switch() && node.host.empty())
                node.host = host_of(node.description, node.name);
            if (node.guid != 0) continue;
            // A hand-written name without a GUID: the default one of its position.
            node.guid = default_guid(i);
            for (std::size_t p = 0; p < node.end_ports.size(); ++p) {
                EndPort& end_port = node.end_ports[p];
                if (end_port.guid <= kPortLimit)
                    end_port.guid = node.is_switch() ? node.guid : node.guid + p + 1;
            }
        }
        return {};
    }

    Result<void> imply_node(const PortStory& story) {
        const std::string_view id = story.said.peer_id;
        if (!id.starts_with("S-") && !id.starts_with("H-")) {
            return error_at(story.line, fmt::format("no node \"{}\" in the file", shown(id)),
                            "every node needs a Switch or Ca line of its own");
        }
        if (id.size() > kTextLimit)
            return error_at(story.line, fmt::format("the peer's id is longer than {}", kTextLimit));
        note_at(story.line,
                fmt::format("\"{}\" has no Switch or Ca line; taken from what its neighbours say",
                            shown(id)));
        NodeLine said;
        said.kind = id.starts_with("S-") ? NodeKind::kSwitch : NodeKind::kHca;
        said.id = id;
        said.port_count = story.said.peer_port;
        said.comment.description = story.said.comment.description;
        said.comment.lid = story.said.comment.lid;
        const auto index = static_cast<NodeIndex>(fabric_.nodes.size());
        by_id_.emplace(id, index);
        line_ = story.line;
        pending_guids_ = {};
        WEIR_TRY_VOID(add_node(said));
        grow_implied(index, story.said);
        return {};
    }

    void grow_implied(NodeIndex index, const PortLine& said) {
        Node& node = fabric_.nodes[index];
        node.port_count = std::max(node.port_count, said.peer_port);
        if (node.is_switch()) return;
        while (node.end_ports.size() < node.port_count)
            node.end_ports.push_back({.guid = node.guid + node.end_ports.size() + 1});
        EndPort& end_port = node.end_ports[said.peer_port - 1];
        if (said.peer_guid) end_port.guid = *said.peer_guid;
        end_port.lid = said.comment.lid;
    }

    // Second pass, links.

    /// Which story is told of a port, by position in stories_; kNoIndex if none.
    std::uint32_t& story_of(PortId end) { return story_by_port_[first_port_[end.node] + end.port]; }

    Result<void> resolve_links() {
        first_port_.assign(fabric_.nodes.size() + 1, 0);
        for (std::size_t i = 0; i < fabric_.nodes.size(); ++i)
            first_port_[i + 1] = first_port_[i] + fabric_.nodes[i].port_count + 1;
        story_by_port_.assign(first_port_.back(), kNoIndex);
        for (std::uint32_t i = 0; i < stories_.size(); ++i) {
            const PortStory& story = stories_[i];
            std::uint32_t& slot = story_of({story.node, story.said.port});
            if (slot != kNoIndex) {
                return error_at(story.line, fmt::format("port [{}] was told of before, on line {}",
                                                        story.said.port, stories_[slot].line));
            }
            slot = i;
        }
        for (std::uint32_t i = 0; i < stories_.size(); ++i) {
            WEIR_TRY_VOID(resolve_link(i));
        }
        return {};
    }

    [[nodiscard]] PortId near_end(const PortStory& story) const {
        return {story.node, story.said.port};
    }
    [[nodiscard]] PortId far_end(const PortStory& story) const {
        return {by_id_.find(story.said.peer_id)->second, story.said.peer_port};
    }

    Result<void> resolve_link(std::uint32_t index) {
        const PortStory& story = stories_[index];
        const PortId here = near_end(story);
        const PortId there = far_end(story);
        const Node& far = fabric_.nodes[there.node];
        if (there.port > far.port_count) {
            return error_at(story.line,
                            fmt::format("port \"{}\"[{}] does not exist: line {} gives it {} ports",
                                        shown(story.said.peer_id), there.port, lines_[there.node],
                                        far.port_count));
        }
        if (here == there) return error_at(story.line, "a port cabled to itself");
        std::uint32_t& slot = story_of(there);
        if (slot == kNoIndex) {
            if (there.node < described_count_) {
                note_at(story.line, fmt::format("told from this end only: \"{}\" on line {} says "
                                                "nothing of its port [{}]",
                                                shown(far.name), lines_[there.node], there.port));
            }
            slot = index;  // So that a second cable to this port is noticed.
            add_link(here, there, story.said.comment);
            return {};
        }
        const PortStory& other = stories_[slot];
        if (near_end(other) != there || far_end(other) != here)
            return contradiction(story, other, there);
        if (slot > index) add_agreed_link(story, other);
        return {};
    }

    /// Two lines that give `port` different far ends.
    [[nodiscard]] tl::unexpected<Error> contradiction(const PortStory& story,
                                                      const PortStory& other, PortId port) const {
        const PortId rival = near_end(other) == port ? far_end(other) : near_end(other);
        const auto named = [this](PortId end) {
            return fmt::format("\"{}\"[{}]", shown(fabric_.nodes[end.node].name), end.port);
        };
        return error_at(story.line,
                        fmt::format("{} is cabled to {} here, but on line {} that is "
                                    "cabled to {}",
                                    named(near_end(story)), named(port), other.line, named(rival)));
    }

    void add_agreed_link(const PortStory& story, const PortStory& other) {
        LineComment comment = story.said.comment;
        const LineComment& far = other.said.comment;
        if (comment.speed.value == 0) {
            comment.speed = far.speed;
            comment.width = far.width;
        } else if (far.speed.value != 0 &&
                   (far.speed != comment.speed || far.width != comment.width)) {
            note_at(story.line,
                    fmt::format("line {} gives this cable another rate; the lower is taken",
                                other.line));
            if (far.speed < comment.speed) {
                comment.speed = far.speed;
                comment.width = far.width;
            }
        }
        if (comment.delay.value < 0) comment.delay = far.delay;
        add_link(near_end(story), near_end(other), comment);
    }

    void add_link(PortId here, PortId there, const LineComment& comment) {
        Link link;
        link.a = here;
        link.b = there;
        link.speed = comment.speed.value > 0 ? comment.speed : fabric_.options.speed;
        link.width = comment.width != 0 ? comment.width : default_width(link.speed);
        link.delay = comment.delay.value >= 0 ? comment.delay : fabric_.options.delay;
        fabric_.links.push_back(std::move(link));
    }

    std::string filename_;
    std::uint32_t line_ = 0;
    Fabric fabric_;
    std::vector<std::string> notes_;
    std::size_t notes_left_out_ = 0;
    GuidLine pending_guids_;            // For the node line to come.
    std::vector<std::uint32_t> lines_;  // By node: the line that tells of it.
    std::vector<PortStory> stories_;    // In file order.
    std::size_t described_count_ = 0;   // Nodes from here on have no line of their own.
    std::unordered_map<std::string_view, NodeIndex> by_id_;
    std::vector<std::size_t> first_port_;  // By node: where its ports start in the next.
    std::vector<std::uint32_t> story_by_port_;
};

}  // namespace

Result<Netlist> parse_netlist(std::string_view text, std::string_view filename) {
    return NetlistReader(filename).read(text);
}

Result<Netlist> read_netlist_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return fail(ErrorCode::kNotFound, fmt::format("{}: cannot be opened", path),
                    "check the path and its permissions");
    }
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file.bad()) return fail(ErrorCode::kSystem, fmt::format("{}: cannot be read", path));
    return parse_netlist(text, path);
}

}  // namespace weir::topology
