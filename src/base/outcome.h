// How ranks learn the outcome of an action on all of them: every rank sends a text with its result or its error.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/error.h"

namespace lockstep {

/// "rank 3 on node1: "; empty if there is only one rank.
std::string name_in_messages(const World& world);
/// Performs the action and returns the text to send. `who` is the name of this rank in errors. Never empty, and never
/// throws an Error.
std::string outcome_of(const std::string& who, const std::function<std::string()>& work);

/// The Error of the first rank that has one.
std::optional<Error> error_in(const std::vector<std::string>& outcomes);
/// The results, if there is no error.
std::vector<std::string> results_in(std::vector<std::string> outcomes);

/// For an action that every rank performs and that may fail on any of them. Returns the results of all ranks. If one
/// failed, all ranks throw its Error, so that no rank waits for it forever. `gather` is an all_gather of texts.
std::vector<std::string> all_agree(const std::function<std::vector<std::string>(const std::string& mine)>& gather,
                                   const std::string& who, const std::function<std::string()>& work);
/// The same over the ranks of `world`.
std::vector<std::string> all_agree(World& world, const std::function<std::string()>& work);
template <typename Work>
requires std::is_void_v<std::invoke_result_t<Work>>
void all_agree(World& world, Work work) {
  all_agree(world, [&work] { return work(), std::string(); });
}

}  // namespace lockstep
