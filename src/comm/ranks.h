// The rank table: host, node and local rank of every rank. Each rank has a copy.
#pragma once

#include <string>
#include <vector>

namespace lockstep::comm {

struct RankTable {
  struct Row {
    std::string host;
    int node = 0;
    int local_rank = 0;
  };
  int rank = 0;
  std::vector<Row> rows;                // one per rank
  std::vector<std::vector<int>> nodes;  // the ranks of each node in ascending order; the first is its leader

  int size() const { return static_cast<int>(rows.size()); }
  int n_nodes() const { return static_cast<int>(nodes.size()); }
  const Row& mine() const { return rows[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& my_node() const { return nodes[static_cast<std::size_t>(mine().node)]; }
  bool is_leader() const { return mine().local_rank == 0; }
  /// "rank 2 on node1"
  std::string name(int rank_of) const {
    return "rank " + std::to_string(rank_of) + " on " + rows[static_cast<std::size_t>(rank_of)].host;
  }
};

}  // namespace lockstep::comm
