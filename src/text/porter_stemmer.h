// The Porter stemmer ("An algorithm for suffix stripping", Program 14, 1980) with the extensions of NLTK's
// PorterStemmer (nltk/stem/porter.py, its default mode), which Google's rouge_score uses: the same stem for every word
// of a-z and 0-9. A digit counts as a consonant.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::text {

/// `word`: lower-case letters and digits only.
std::string porter_stem(std::string_view word);

}  // namespace lockstep::text
