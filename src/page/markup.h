// Text in XML and in HTML that is also XML.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::page {

/// `text` for the content of an element or for an attribute in double quotes. Nothing in it can begin or end an
/// element, an attribute, a comment or a character reference. U+FFFD replaces what is not UTF-8, what XML forbids
/// (control characters), and the characters that reverse the direction of the text around them.
std::string escaped(std::string_view text);

/// The width of a text in a sans-serif font, estimated: at least as wide as it is drawn by common fonts.
double text_width(std::string_view text, double font_size);
/// The text, or its beginning with an ellipsis, so that it is not wider than `width`.
std::string shortened(std::string_view text, double font_size, double width);

}  // namespace lockstep::page
