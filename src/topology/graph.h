// SPDX-License-Identifier: Apache-2.0
// Fabric: what a fabric is made of, as plain data. Switches and HCAs (nodes) with numbered ports,
// and the cables between them (links). Every reader (fabric.yaml, ibnetdiscover dumps), every
// builder and the sweeping manager end in a Fabric; routing, the lab and the twin start from one.
//
// Nodes and links are named by their index in the two vectors: small, dense, good as array indices.
// Names are for people and files. A Fabric is passive: whoever fills one calls finish_links() and
// validate(); everything downstream may then rely on what validate() promises.
//
// Port numbers are IBTA's: physical ports count from 1. Port 0 is a switch's own management port,
// to which no cable goes. Out-of-fabric facts (LIDs, GUIDs) sit on end ports: a switch has one
// (port 0), an HCA one for each physical port.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace weir::topology {

using NodeIndex = std::uint32_t;  ///< Position in Fabric::nodes.
using LinkIndex = std::uint32_t;  ///< Position in Fabric::links.
using PortNumber = std::uint32_t;
inline constexpr std::uint32_t kNoIndex = 0xffffffff;  ///< "No such node" or "no such link".

/// The largest fabric that any reader or builder makes: beyond it a file is taken to be a mistake.
inline constexpr std::uint32_t kNodeLimit = 200'000;
/// The most ports of one node. Forwarding tables hold 8 bits, of which 255 means "no route".
inline constexpr PortNumber kPortLimit = 254;

enum class NodeKind : std::uint8_t { kSwitch, kHca };

using Ipv4 = std::array<std::uint8_t, 4>;   ///< In network order; zeros: none.
using Ipv6 = std::array<std::uint8_t, 16>;  ///< The same.

/// A port that packets can be addressed to.
struct EndPort {
    std::uint64_t guid = 0;
    std::uint32_t lid = 0;  ///< As found by an import; 0 = none. Our own routing assigns its own.
    std::uint8_t lmc = 0;   ///< The port answers to 2^lmc LIDs, starting at `lid`.
    Ipv4 ipv4{};            ///< HCAs: as the file says; see address.h for the rest.
    Ipv6 ipv6{};
    bool operator==(const EndPort&) const = default;
};

struct Node {
    NodeKind kind = NodeKind::kSwitch;
    std::string name;           ///< Unique in its fabric: "s0", "h0", "h0/1", "S-0c42a1030079ae0c".
    std::uint64_t guid = 0;     ///< Unique in its fabric and never 0.
    PortNumber port_count = 0;  ///< Physical ports, numbered 1..port_count.
    std::string
        description;  ///< What the node says of itself (NodeDescription); need not be unique.
    /// HCAs only: the machine it sits in. With one HCA in "h0" the node is named "h0", with several
    /// "h0/0", "h0/1"... Empty for switches.
    std::string host;
    std::vector<EndPort> end_ports;  ///< Switch: one, its port 0. HCA: port p at index p-1.
    // Where the node stands in a shape, if known. Switch tiers count from 1 at the leaves.
    std::optional<std::uint32_t> tier;
    std::optional<std::uint32_t> pod;
    std::optional<std::uint32_t> rail;
    std::optional<std::uint32_t> su;  ///< Scalable unit.

    bool operator==(const Node&) const = default;
    [[nodiscard]] bool is_switch() const { return kind == NodeKind::kSwitch; }
};

/// One end of a link.
struct PortId {
    NodeIndex node = kNoIndex;
    PortNumber port = 0;
    auto operator<=>(const PortId&) const = default;
};

/// A cable. finish_links() puts the HCA's end first, else the lower (node, port), so that a cable
/// has one name only: "h0:1-s0:1".
struct Link {
    PortId a;
    PortId b;
    std::uint32_t width = 4;  ///< Lanes: 1, 2, 4, 8 or 12.
    BitsPerSecond speed{};    ///< Of the whole link in each direction, all lanes together.
    Picos delay{};            ///< Propagation along the cable, one way.
    std::string name{};       ///< "<node>:<port>-<node>:<port>", written by finish_links().
    bool operator==(const Link&) const = default;
};

enum class LinkLayer : std::uint8_t { kInfiniband, kEthernet };

/// A size. The unit is in the type, as with the quantities in base/units.h.
struct Bytes {
    std::int64_t value = 0;
    auto operator<=>(const Bytes&) const = default;
};

inline constexpr std::uint32_t kLanesMax = 8;
inline constexpr std::uint32_t kHighLimitNone = 255;

/// A data lane's part of every link that has a rate (IBTA 7.6.9).
struct LaneShare {
    std::uint32_t weight = 64;  ///< 1 to 255, in units of 64 bytes.
    bool high = false;          ///< In the high-priority table.
    bool operator==(const LaneShare&) const = default;
};

struct Arbitration {
    /// What the high-priority lanes may send before a low-priority packet has its chance: units of
    /// 4 KiB, 0 for one packet, kHighLimitNone for no limit.
    std::uint32_t high_limit = 16;
    std::array<LaneShare, kLanesMax> lanes{};
    bool operator==(const Arbitration&) const = default;
};

/// What holds for every port of a fabric unless a link says otherwise.
struct Options {
    LinkLayer link_layer = LinkLayer::kInfiniband;
    Bytes mtu{4096};               ///< 256, 512, 1024, 2048 or 4096.
    std::uint32_t data_lanes = 4;  ///< Data virtual lanes, 1 to 8. VL15 is not counted.
    BitsPerSecond speed{400'000'000'000};
    Bytes buffer{262'144};  ///< Receive buffer of a port for each virtual lane.
    Picos delay{};          ///< Cable propagation, one way.
    /// Links carry no more than their speed; else they are as fast as the machine.
    bool rates_enforced = false;
    Arbitration arbitration{};
    bool operator==(const Options&) const = default;
};

struct Fabric {
    std::string name;
    Options options;
    std::vector<Node> nodes;
    std::vector<Link> links;

    bool operator==(const Fabric&) const = default;

    /// The node of this name, else the only node of this description. Linear in the fabric's size.
    [[nodiscard]] std::optional<NodeIndex> find_node(std::string_view name_or_description) const;

    /// The link of this name, in either order of its ends, or the link at one end: "s0:1".
    [[nodiscard]] std::optional<LinkIndex> find_link(std::string_view name_or_end) const;

    [[nodiscard]] std::size_t switch_count() const;
    [[nodiscard]] std::size_t hca_count() const;

    /// "s0:1". REQUIRES: end.node is a node of this fabric.
    [[nodiscard]] std::string port_name(PortId end) const;

    /// Brings links into the one order and naming that equality, names and exports rely on.
    /// REQUIRES: both ends of every link are nodes of this fabric.
    void finish_links();

    /// Checks what everybody downstream relies on: names and GUIDs are unique, texts are printable;
    /// ports are in range and used by one link at most; no cable plugs into itself; end_ports fit
    /// the kind; an HCA has a host, a switch has none. The error names what is wrong with which
    /// node.
    [[nodiscard]] Result<void> validate() const;
};

/// Who is at the other end of a port.
struct Peer {
    NodeIndex node = kNoIndex;
    PortNumber port = 0;
    LinkIndex link = kNoIndex;
    [[nodiscard]] bool connected() const { return node != kNoIndex; }
};

/// Port -> peer, as one flat array: built once in linear time, then each look-up is two loads.
/// A snapshot: it does not follow later changes of the fabric.
class Adjacency {
  public:
    /// REQUIRES: fabric.validate() holds.
    explicit Adjacency(const Fabric& fabric);

    /// REQUIRES: node < node count and port <= its port_count. Port 0 is never connected.
    [[nodiscard]] const Peer& peer(NodeIndex node, PortNumber port) const {
        return peers_[first_[node] + port];
    }

    /// The peers of all ports of `node`; index = port number, [0] is the unconnected port 0.
    [[nodiscard]] std::span<const Peer> ports(NodeIndex node) const {
        return {peers_.data() + first_[node], first_[node + 1] - first_[node]};
    }

  private:
    std::vector<std::size_t> first_;
    std::vector<Peer> peers_;
};

/// The GUIDs given to nodes that have none: locally administered, a function of the node's index
/// only, spaced so that every HCA port has its own. Port p of the HCA has GUID node + p.
constexpr std::uint64_t default_guid(NodeIndex index) {
    return 0x0257656900000000ULL + ((std::uint64_t{index} + 1) << 8U);
}

/// A node with default GUIDs for position `index`, described by its own name.
Node make_switch(NodeIndex index, std::string name, PortNumber port_count);
Node make_hca(NodeIndex index, std::string name, std::string host, PortNumber port_count);

/// The lanes that a link of this rate has by InfiniBand's table: 4 wherever 4 lanes can reach it.
std::uint32_t default_width(BitsPerSecond speed);

}  // namespace weir::topology
