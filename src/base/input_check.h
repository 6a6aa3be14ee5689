// The check that a command does not replace what it reads.
#pragma once

#include <span>
#include <string>

namespace lockstep {

/// Throws usage if writing `output` would replace one of the files `inputs`: the same file by device and inode,
/// whatever links and names lead to it. An input that is the directory of a model or of a run stands for the files that
/// belong to it, and an output that is a directory for all that is in it. Names of inputs that are no files
/// ("synthetic") are ignored, and so are pipes and devices.
void require_no_input(const std::string& output, std::span<const std::string> inputs);

}  // namespace lockstep
