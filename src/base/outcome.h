// How ranks learn what a piece of work gave on each of them: every rank sends a text, its result or its error.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/communicator.h"
#include "lockstep/error.h"

namespace lockstep {

/// "rank 3 on node1: "; nothing where it is the only one.
std::string name_in_messages(const World& world);
/// The text of this rank, which its errors name as `who`; never empty, never throws an Error.
std::string outcome_of(const std::string& who, const std::function<std::string()>& work);

/// The first rank's Error, if there is one.
std::optional<Error> error_in(const std::vector<std::string>& outcomes);
/// The results, where there is no error.
std::vector<std::string> results_in(std::vector<std::string> outcomes);

/// Work that every rank does and any may fail at: every rank's result; where one failed all throw its Error, so that
/// none waits for it for ever. `gather` is an all_gather of texts.
std::vector<std::string> all_agree(const std::function<std::vector<std::string>(const std::string& mine)>& gather,
                                   const std::string& who, const std::function<std::string()>& work);
/// The same over the ranks of `world`.
std::vector<std::string> all_agree(World& world, const std::function<std::string()>& work);

}  // namespace lockstep
