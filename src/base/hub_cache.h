// The local cache of the Hugging Face Hub: $HF_HUB_CACHE, or else $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, or
// ~/.cache/huggingface/hub. There,
//   models--ORGANISATION--NAME/refs/REVISION        is a file with the commit of a branch or tag, and
//   models--ORGANISATION--NAME/snapshots/COMMIT/    the directory of the model.
// Those of data sets begin with datasets--.
// Source: huggingface_hub, "Understand caching" and "Environment variables".
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Whether the text is "organisation/name", with characters that the Hub allows.
bool is_hub_name(const std::string& text);
/// If no file is called `path`, and it is "organisation/name" or "organisation/name@REVISION" (a branch, a tag or a
/// commit; "main" if there is none), returns the directory of that model in the cache. Otherwise, or if the cache does
/// not have it, returns `path`.
std::string find_model(const std::string& path);
/// The same for data sets.
std::string find_dataset(const std::string& path);
/// "organisation/name" if the path leads into a cache; otherwise empty.
std::string hub_name_of(const std::string& path);
/// How a data set records where it comes from: "organisation/name@COMMIT", with the rest of the path, if the path leads
/// into a data set in a cache; otherwise the name of the file or folder.
std::string source_name(const std::string& path);

enum class HubKind : std::uint8_t { model, dataset };
/// For a message about a path that does not exist: how the model or data set of that name gets into the cache. Empty if
/// it is no name of one.
std::string hub_remedy(const std::string& path, HubKind kind = HubKind::model);

}  // namespace lockstep
