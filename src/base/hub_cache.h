// The local cache of the Hugging Face Hub: $HF_HUB_CACHE, or else $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, or
// ~/.cache/huggingface/hub. There,
//   models--ORGANISATION--NAME/refs/REVISION        is a file with the commit of a branch or tag, and
//   models--ORGANISATION--NAME/snapshots/COMMIT/    the directory of the model.
// Source: huggingface_hub, "Understand caching" and "Environment variables".
#pragma once

#include <string>

namespace lockstep {

/// Whether the text is "organisation/name", with characters that the Hub allows.
bool is_hub_name(const std::string& text);
/// If no file is called `path`, and it is "organisation/name" or "organisation/name@REVISION" (a branch, a tag or a
/// commit; "main" if there is none), returns the directory of that model in the cache. Otherwise, or if the cache does
/// not have it, returns `path`.
std::string find_model(const std::string& path);
/// "organisation/name" if the path leads into a cache; otherwise empty.
std::string hub_name_of(const std::string& path);
/// For a message about a path that does not exist: how the model of that name gets into the cache. Empty if it is no
/// name of a model.
std::string hub_remedy(const std::string& path);

}  // namespace lockstep
