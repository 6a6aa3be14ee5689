// The result of one check, and the report with all of them. A check is a pure function of measurements, so tests can
// pass it any numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "lockstep/communicator.h"

namespace lockstep::doctor {

/// unknown: the system does not report the value, or only to root. It does not make anything fail.
enum class Status : std::uint8_t { pass, unknown, warn, fail };
std::string name(Status status);
inline Status status_of(bool fails, bool warns = false) {
  return fails ? Status::fail : warns ? Status::warn : Status::pass;
}

struct Check {
  std::string name{};   // "matmul"
  std::string scope{};  // "rank 3 on node2", "node2", "all ranks"
  Status status = Status::pass;
  std::string value{};             // what was found: "1.92 TFLOP/s"
  std::string expected{};          // "at least 1.50 TFLOP/s"; empty: there is no limit
  std::string remedy{};            // a sentence; empty for pass
  std::optional<double> number{};  // of the value, in `unit`: passes of one name are merged into one line of the table
  std::string unit{};
  double times_slower = 0;  // a slow link: what it should give over what it gives; otherwise 0
};

/// Adds a check, with its remedy only if it does not pass.
void add(std::vector<Check>& checks, Check check);

/// The rank whose device is slowest, compared with the median of all ranks.
struct SlowestRank {
  int rank = 0;
  std::string host{}, what{};  // what: "matmul"
  double slower = 0;           // how much slower it is, as a part of the median, 0 to 1
  std::string sentence() const;
};

struct Report {
  std::vector<Check> checks{};
  std::optional<SlowestRank> slowest{};  // none in a world of one rank
  std::vector<std::string> notes{};      // what was left out, and why

  bool has_failed() const;
  /// The checks that warn or fail, one per line, with their remedies; empty: there are none.
  std::string problems() const;
  /// The same for one rank and its node only.
  std::string problems_of(int rank, const std::string& host) const;
  /// The slowest of the pairs of ranks and all-reduces that warn or fail; null: none does.
  const Check* slowest_link() const;
  /// What is slowest of the ranks and of the links, the worse one last.
  std::vector<std::string> slowest_sentences() const;
  /// For users: the table, what is slowest, and the counts.
  std::string text() const;
  nlohmann::ordered_json json() const;
};

// What ranks measure and send to the others as JSON (device.h, host.h, links.h, folder.h, system.h). Empty optionals
// are unknown.

struct Place {
  int rank = 0, node = 0, local_rank = 0, local_size = 1;
  std::string host{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Place, rank, node, local_rank, local_size, host)

/// "rank 3 on node2"
std::string rank_name(int rank, const std::string& host);
inline std::string rank_name(const Place& place) { return rank_name(place.rank, place.host); }

/// Every rank's facts, in the order of ranks. Collective.
template <typename Facts>
std::vector<Facts> gather(World& world, const Facts& mine) {
  std::vector<Facts> all;
  const nlohmann::json json = mine;
  for (const std::string& text : world.all_gather(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)))
    all.push_back(nlohmann::json::parse(text).get<Facts>());
  return all;
}

}  // namespace lockstep::doctor
