// SPDX-License-Identifier: Apache-2.0
#include "topology/builders.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

namespace weir::topology {

namespace {

tl::unexpected<Error> invalid(std::string context, std::string hint = {}) {
    return fail(ErrorCode::kInvalid, std::move(context), std::move(hint));
}

/// Grows a fabric node by node; ports of a switch are handed out in increasing order.
class Builder {
  public:
    explicit Builder(const Options& options) { fabric_.options = options; }

    Node& add_switch(std::string name, PortNumber port_count) {
        fabric_.nodes.push_back(make_switch(next_index(), std::move(name), port_count));
        next_port_.push_back(1);
        return fabric_.nodes.back();
    }

    /// Adds hosts h0, h1, ... of `hcas` single-port HCAs each. HCA r of host n has index n*hcas +
    /// r.
    void add_hosts(std::uint32_t hosts, std::uint32_t hcas) {
        for (std::uint32_t host = 0; host < hosts; ++host) {
            const std::string name = fmt::format("h{}", host);
            for (std::uint32_t i = 0; i < hcas; ++i) {
                const std::string full = hcas == 1 ? name : fmt::format("{}/{}", name, i);
                Node node = make_hca(next_index(), full, name, 1);
                if (hcas > 1) node.rail = i;
                fabric_.nodes.push_back(std::move(node));
                next_port_.push_back(1);
            }
        }
    }

    /// Cables the next free port of each.
    void link(NodeIndex a, NodeIndex b) { link_ports({a, next_port_[a]++}, {b, next_port_[b]++}); }

    void link_ports(PortId a, PortId b) {
        Link link;
        link.a = a;
        link.b = b;
        link.speed = fabric_.options.speed;
        link.width = default_width(link.speed);
        link.delay = fabric_.options.delay;
        fabric_.links.push_back(std::move(link));
    }

    [[nodiscard]] NodeIndex next_index() const {
        return static_cast<NodeIndex>(fabric_.nodes.size());
    }
    Node& node(NodeIndex index) { return fabric_.nodes[index]; }

    Result<Fabric> finish(std::string name) {
        fabric_.name = std::move(name);
        fabric_.finish_links();
        WEIR_TRY_VOID(fabric_.validate());
        return std::move(fabric_);
    }

  private:
    Fabric fabric_;
    std::vector<PortNumber> next_port_;
};

Result<void> check_size(std::uint64_t nodes) {
    if (nodes <= kNodeLimit) return {};
    return invalid(fmt::format("{} nodes asked for; the limit is {}", nodes, kNodeLimit));
}

/// How one tier of switches is cabled to the next: each lower switch has `uplinks` links, spread
/// evenly over `uppers` switches of `ports` ports, `lowers` lower switches in all.
struct Spread {
    std::uint32_t uppers;
    std::uint32_t parallel;  ///< Links between each lower and each upper switch.
};

/// The fewest upper switches for which every pair has the same number of links.
/// REQUIRES: 1 <= lowers <= ports.
Spread spread(std::uint32_t uplinks, std::uint32_t lowers, std::uint32_t ports) {
    const std::uint32_t parallel_max = ports / lowers;
    std::uint32_t uppers = (uplinks + parallel_max - 1) / parallel_max;
    while (uplinks % uppers != 0)
        ++uppers;
    return {uppers, uplinks / uppers};
}

/// A fat tree's numbers, worked out and checked before anything is built.
struct TreePlan {
    std::uint32_t leaf_down = 0;
    std::uint32_t leaf_up = 0;
    std::uint32_t su_hosts = 0;
    std::uint32_t sus = 0;
    std::uint32_t pods = 1;
    std::uint32_t pod_sus = 0;  ///< Scalable units of a full pod.
    Spread spines{};            ///< Per pod.
    Spread cores{0, 0};         ///< Per spine group; three levels only.
};

std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) {
    return a / b + (a % b != 0 ? 1 : 0);
}

Result<TreePlan> plan_leaves(const FatTree& shape) {
    if (shape.levels != 2 && shape.levels != 3)
        return invalid(fmt::format("levels is {}; a fat tree has 2 or 3", shape.levels));
    if (shape.radix < 2 || shape.radix > kPortLimit)
        return invalid(
            fmt::format("radix is {}; it lies within 2 ... {}", shape.radix, kPortLimit));
    if (shape.hosts == 0 || shape.rails == 0) return invalid("a fat tree of no hosts or rails");
    if (shape.taper.down == 0 || shape.taper.up == 0) return invalid("taper has a zero side");
    WEIR_TRY_VOID(check_size(std::uint64_t{shape.hosts} * shape.rails));
    TreePlan plan;
    const std::uint64_t sum = std::uint64_t{shape.taper.down} + shape.taper.up;
    plan.leaf_up = static_cast<std::uint32_t>(std::uint64_t{shape.radix} * shape.taper.up / sum);
    plan.leaf_down = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(shape.radix - plan.leaf_up,
                                std::uint64_t{plan.leaf_up} * shape.taper.down / shape.taper.up));
    if (plan.leaf_up == 0 || plan.leaf_down == 0) {
        return invalid(fmt::format("taper {}:{} leaves a leaf of radix {} without {}",
                                   shape.taper.down, shape.taper.up, shape.radix,
                                   plan.leaf_up == 0 ? "uplinks" : "host ports"));
    }
    plan.su_hosts = shape.su_hosts == 0 ? plan.leaf_down : shape.su_hosts;
    if (plan.su_hosts > plan.leaf_down) {
        return invalid(fmt::format("su_hosts is {}, but a leaf of radix {} has {} host ports",
                                   plan.su_hosts, shape.radix, plan.leaf_down));
    }
    plan.sus = ceil_div(shape.hosts, plan.su_hosts);
    return plan;
}

Result<TreePlan> plan_two_levels(const FatTree& shape, TreePlan plan) {
    const std::uint64_t leaves = std::uint64_t{plan.sus} * shape.rails;
    if (leaves > shape.radix) {
        const std::uint32_t most = shape.radix / shape.rails * plan.su_hosts;
        return invalid(
            fmt::format("{} leaves needed, but a spine of radix {} reaches {}", leaves, shape.radix,
                        shape.radix),
            most == 0 ? "use a larger radix or fewer rails"
                      : fmt::format("at most {} hosts fit; use levels: 3 or a larger radix", most));
    }
    plan.pod_sus = plan.sus;
    plan.spines = spread(plan.leaf_up, static_cast<std::uint32_t>(leaves), shape.radix);
    return plan;
}

Result<TreePlan> plan_three_levels(const FatTree& shape, TreePlan plan) {
    const std::uint32_t half = shape.radix / 2;
    const std::uint32_t most_sus = half / shape.rails;
    if (most_sus == 0) {
        return invalid(fmt::format("{} rails, but a spine of radix {} reaches {} leaves",
                                   shape.rails, shape.radix, half),
                       "use a larger radix or fewer rails");
    }
    plan.pods = ceil_div(plan.sus, most_sus);
    if (plan.pods > shape.radix) {
        return invalid(fmt::format("{} pods needed, but a core switch of radix {} reaches {}",
                                   plan.pods, shape.radix, shape.radix),
                       fmt::format("at most {} hosts fit",
                                   std::uint64_t{shape.radix} * most_sus * plan.su_hosts));
    }
    plan.pod_sus = ceil_div(plan.sus, plan.pods);
    plan.pods = ceil_div(plan.sus, plan.pod_sus);
    const std::uint32_t pod_leaves = plan.pod_sus * shape.rails;
    plan.spines = spread(plan.leaf_up, pod_leaves, half);
    // A spine has as many links up as down, so that the tree narrows at the leaves only.
    plan.cores = spread(pod_leaves * plan.spines.parallel, plan.pods, shape.radix);
    return plan;
}

Result<TreePlan> plan_tree(const FatTree& shape) {
    WEIR_TRY(TreePlan plan, plan_leaves(shape));
    WEIR_TRY(plan,
             shape.levels == 2 ? plan_two_levels(shape, plan) : plan_three_levels(shape, plan));
    WEIR_TRY_VOID(check_size(std::uint64_t{shape.hosts} * shape.rails +
                             std::uint64_t{plan.sus} * shape.rails +
                             std::uint64_t{plan.pods} * plan.spines.uppers +
                             std::uint64_t{plan.spines.uppers} * plan.cores.uppers));
    return plan;
}

void add_tree_switches(Builder& builder, const FatTree& shape, const TreePlan& plan) {
    for (std::uint32_t su = 0; su < plan.sus; ++su) {
        for (std::uint32_t rail = 0; rail < shape.rails; ++rail) {
            Node& leaf =
                builder.add_switch(fmt::format("leaf{}", su * shape.rails + rail), shape.radix);
            leaf.tier = 1;
            leaf.su = su;
            if (shape.rails > 1) leaf.rail = rail;
            if (shape.levels == 3) leaf.pod = su / plan.pod_sus;
        }
    }
    for (std::uint32_t i = 0; i < plan.pods * plan.spines.uppers; ++i) {
        Node& spine = builder.add_switch(fmt::format("spine{}", i), shape.radix);
        spine.tier = 2;
        if (shape.levels == 3) spine.pod = i / plan.spines.uppers;
    }
    for (std::uint32_t i = 0; i < plan.spines.uppers * plan.cores.uppers; ++i)
        builder.add_switch(fmt::format("core{}", i), shape.radix).tier = 3;
}

Result<Fabric> build_tree(const FatTree& shape, const Options& options, const std::string& name) {
    WEIR_TRY(const TreePlan plan, plan_tree(shape));
    Builder builder(options);
    builder.add_hosts(shape.hosts, shape.rails);
    const NodeIndex first_leaf = builder.next_index();
    add_tree_switches(builder, shape, plan);
    const std::uint32_t leaves = plan.sus * shape.rails;
    const NodeIndex first_spine = first_leaf + leaves;
    const NodeIndex first_core = first_spine + plan.pods * plan.spines.uppers;
    for (std::uint32_t host = 0; host < shape.hosts; ++host) {
        const std::uint32_t su = host / plan.su_hosts;
        for (std::uint32_t rail = 0; rail < shape.rails; ++rail) {
            const NodeIndex hca = host * shape.rails + rail;
            builder.node(hca).su = su;
            if (shape.levels == 3) builder.node(hca).pod = su / plan.pod_sus;
            builder.link(hca, first_leaf + su * shape.rails + rail);
        }
    }
    for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
        const std::uint32_t pod = leaf / (plan.pod_sus * shape.rails);
        for (std::uint32_t i = 0; i < plan.spines.uppers * plan.spines.parallel; ++i) {
            builder.link(first_leaf + leaf,
                         first_spine + pod * plan.spines.uppers + i / plan.spines.parallel);
        }
    }
    for (std::uint32_t spine = 0; spine < plan.pods * plan.spines.uppers; ++spine) {
        const std::uint32_t group = spine % plan.spines.uppers;
        for (std::uint32_t i = 0; i < plan.cores.uppers * plan.cores.parallel; ++i) {
            builder.link(first_spine + spine,
                         first_core + group * plan.cores.uppers + i / plan.cores.parallel);
        }
    }
    return builder.finish(name);
}

void link_dragonfly(Builder& builder, const Dragonfly& shape, NodeIndex first_switch) {
    const auto id = [&](std::uint32_t group, std::uint32_t s) {
        return first_switch + group * shape.a + s;
    };
    for (std::uint32_t group = 0; group < shape.g; ++group) {
        for (std::uint32_t s = 0; s < shape.a; ++s) {
            for (std::uint32_t t = s + 1; t < shape.a; ++t)
                builder.link(id(group, s), id(group, t));
        }
    }
    // Global port t of group i, counted through the group, goes t mod (g-1) groups further, plus
    // one; the far end is the port whose way leads back. Whole rounds only.
    if (shape.g < 2) return;
    const std::uint32_t others = shape.g - 1;
    const std::uint32_t rounds = shape.a * shape.h / others;
    const PortNumber first_port = shape.p + shape.a;  // After p host and a-1 local ports.
    const auto global_port = [&](std::uint32_t group, std::uint32_t t) {
        return PortId{id(group, t / shape.h), first_port + t % shape.h};
    };
    for (std::uint32_t round = 0; round < rounds; ++round) {
        for (std::uint32_t group = 0; group < shape.g; ++group) {
            for (std::uint32_t offset = 0; offset < others; ++offset) {
                const std::uint32_t far = (group + 1 + offset) % shape.g;
                if (far < group) continue;
                const std::uint32_t back = others - 1 - offset;
                builder.link_ports(global_port(group, round * others + offset),
                                   global_port(far, round * others + back));
            }
        }
    }
}

std::string torus_name(std::uint32_t index, const std::vector<std::uint32_t>& dims) {
    std::string name = "s";
    for (std::size_t d = 0; d < dims.size(); ++d) {
        name += fmt::format("{}{}", d == 0 ? "" : ".", index % dims[d]);
        index /= dims[d];
    }
    return name;
}

}  // namespace

Result<Fabric> build_single_switch(const SingleSwitch& shape, const Options& options) {
    const std::uint64_t needed = std::uint64_t{shape.hosts} * shape.hcas;
    if (needed == 0) return invalid("a switch without hosts");
    const std::uint32_t ports =
        shape.ports != 0 ? shape.ports
                         : static_cast<std::uint32_t>(std::min<std::uint64_t>(needed, kPortLimit));
    if (needed > ports || ports > kPortLimit) {
        return invalid(fmt::format("{} host ports do not fit a switch of {} ports", needed, ports),
                       fmt::format("a switch has at most {}; use shape: fat-tree", kPortLimit));
    }
    Builder builder(options);
    builder.add_hosts(shape.hosts, shape.hcas);
    const NodeIndex hub = builder.next_index();
    builder.add_switch("s0", ports).tier = 1;
    for (NodeIndex hca = 0; hca < hub; ++hca)
        builder.link(hca, hub);
    return builder.finish("single-switch");
}

Result<Fabric> build_fat_tree(const FatTree& shape, const Options& options) {
    return build_tree(shape, options, "fat-tree");
}

Result<Fabric> build_rail_optimised(const RailOptimised& shape, const Options& options) {
    return build_tree({.levels = shape.levels,
                       .radix = shape.radix,
                       .hosts = shape.hosts,
                       .rails = shape.rails,
                       .taper = shape.taper,
                       .su_hosts = shape.su_hosts},
                      options, "rail-optimised");
}

Result<Fabric> build_dragonfly(const Dragonfly& shape, const Options& options) {
    const std::uint64_t ports =
        std::uint64_t{shape.p} + (shape.a == 0 ? 0 : shape.a - 1) + std::uint64_t{shape.h};
    if (shape.a == 0 || shape.p == 0 || shape.g == 0) return invalid("a, p and g are at least 1");
    if (ports > kPortLimit)
        return invalid(
            fmt::format("a switch would have {} ports; the limit is {}", ports, kPortLimit));
    if (shape.g - 1 > std::uint64_t{shape.a} * shape.h) {
        return invalid(fmt::format("{} groups, but a*h = {} global links reach {} others", shape.g,
                                   shape.a * shape.h, shape.a * shape.h),
                       fmt::format("use g: {} or less", shape.a * shape.h + 1));
    }
    const std::uint64_t switches = std::uint64_t{shape.a} * shape.g;
    WEIR_TRY_VOID(check_size(switches * (1 + shape.p)));
    Builder builder(options);
    builder.add_hosts(static_cast<std::uint32_t>(switches) * shape.p, 1);
    const NodeIndex first_switch = builder.next_index();
    for (std::uint32_t i = 0; i < switches; ++i) {
        Node& node = builder.add_switch(fmt::format("g{}.s{}", i / shape.a, i % shape.a),
                                        static_cast<PortNumber>(ports));
        node.pod = i / shape.a;
        node.tier = 1;
    }
    for (NodeIndex hca = 0; hca < first_switch; ++hca) {
        builder.node(hca).pod = hca / (shape.p * shape.a);
        builder.link(hca, first_switch + hca / shape.p);
    }
    link_dragonfly(builder, shape, first_switch);
    return builder.finish("dragonfly");
}

Result<Fabric> build_torus(const Torus& shape, const Options& options) {
    if (shape.dims.size() < 2 || shape.dims.size() > 3)
        return invalid(fmt::format("{} dimensions; a torus has 2 or 3", shape.dims.size()));
    if (shape.hosts_per_switch == 0 || shape.hosts_per_switch > kPortLimit - 6)
        return invalid(fmt::format("hosts_per_switch lies within 1 ... {}", kPortLimit - 6));
    std::uint64_t switches = 1;
    for (const std::uint32_t size : shape.dims) {
        if (size == 0) return invalid("a dimension of size 0");
        switches *= size;
        WEIR_TRY_VOID(check_size(switches * (1 + std::uint64_t{shape.hosts_per_switch})));
    }
    const std::uint32_t hosts = static_cast<std::uint32_t>(switches) * shape.hosts_per_switch;
    const auto port_count = static_cast<PortNumber>(shape.hosts_per_switch + 2 * shape.dims.size());
    Builder builder(options);
    builder.add_hosts(hosts, 1);
    for (std::uint32_t i = 0; i < switches; ++i)
        builder.add_switch(torus_name(i, shape.dims), port_count).tier = 1;
    for (NodeIndex hca = 0; hca < hosts; ++hca)
        builder.link(hca, hosts + hca / shape.hosts_per_switch);
    std::uint32_t stride = 1;
    for (std::size_t d = 0; d < shape.dims.size(); ++d) {
        const auto plus = static_cast<PortNumber>(shape.hosts_per_switch + 2 * d + 1);
        for (std::uint32_t i = 0; i < switches; ++i) {
            const std::uint32_t at = i / stride % shape.dims[d];
            const bool wraps = at + 1 == shape.dims[d];
            // In a dimension of 2 the wrap-around would double the only link.
            if (shape.dims[d] == 1 || (wraps && shape.dims[d] == 2)) continue;
            const std::uint32_t next = wraps ? i - at * stride : i + stride;
            builder.link_ports({hosts + i, plus}, {hosts + next, plus + 1});
        }
        stride *= shape.dims[d];
    }
    return builder.finish("torus");
}

}  // namespace weir::topology
