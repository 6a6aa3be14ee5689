// The ids of conversations and the positions of their answers, compared with transformers
// (test/golden/make_chat_golden.py, make_chat_marked_golden.py), and templates that place the answers in the text in
// unusual ways.
//
// timeout: 300
#include "text/conversation_encoder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "lockstep/error.h"
#include "test/text/golden.h"

namespace lockstep::text {
namespace {

using golden::Ids;
using golden::Json;

Json read_json(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::string fnv(const Ids& ids) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const std::int32_t id : ids)
    for (int byte = 0; byte < 4; ++byte)
      value = (value ^ (static_cast<std::uint32_t>(id) >> 8 * byte & 0xff)) * 0x100000001b3;
  return fmt::format("{:016x}", value);
}

/// The tokenizer of test/golden, with additional special tokens at the end of its vocabulary.
Tokenizer open_with(const std::string& name, const std::vector<std::string>& added) {
  Json json = golden::byte_level_json(name);
  int next = 0;
  for (const auto& [token, id] : json["model"]["vocab"].items()) next = std::max(next, id.get<int>() + 1);
  for (const Json& token : json["added_tokens"]) next = std::max(next, token["id"].get<int>() + 1);
  for (const std::string& token : added)
    json["added_tokens"].push_back({{"id", next++},
                                    {"content", token},
                                    {"special", true},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false}});
  return Tokenizer::parse(name, json.dump());
}

TEST(ConversationEncoder, AgreesWithTransformers) {
  const Json all = read_json("test/golden/chat.json"),
             templates = read_json("test/golden/chat_templates.json")["templates"];
  const Json texts = Json::parse(golden::unzipped("texts.json.gz"))["texts"];
  std::map<std::string, Tokenizer> tokenizers;
  int n = 0, n_answers = 0;
  for (const Json& c : all["cases"]) {
    const auto added = c["added_tokens"].get<std::vector<std::string>>();
    const std::string name = c["tokenizer"], key = name + (added.empty() ? "" : " with more");
    if (!tokenizers.contains(key)) tokenizers.emplace(key, open_with(name, added));
    const Tokenizer& tokenizer = tokenizers.at(key);
    const ChatTemplate chat(templates[c["template"].get<std::string>()].get<std::string>(), c["template"],
                            {{"bos_token", "<|begin_of_text|>"}});
    const ConversationEncoder encoder(chat, tokenizer);
    for (const Json& conversation : c["conversations"]) {
      std::vector<ChatMessage> messages;
      for (const Json& message : conversation["messages"])
        messages.push_back({message[0], texts[message[1].get<std::size_t>()]});
      const EncodedConversation encoded = encoder.encode(messages);
      EXPECT_EQ(encoded.ids.size(), conversation["n_ids"]) << chat.source() << conversation["messages"].dump();
      EXPECT_EQ(fnv(encoded.ids), conversation["hash"]) << chat.source() << conversation["messages"].dump();
      EXPECT_EQ(Json(encoded.answers), conversation["answers"]) << chat.source() << conversation["messages"].dump();
      for (const auto& [begin, end] : encoded.answers)
        EXPECT_EQ(tokenizer.decode(std::span(encoded.ids).subspan(end - 1, 1)),
                  added.empty() ? "<|im_end|>" : "<|eot_id|>");
      ++n;
      n_answers += static_cast<int>(encoded.answers.size());
    }
  }
  EXPECT_EQ(n, 480);
  EXPECT_GT(n_answers, 700);
}

/// A value of chat_marked.json, in which "#12" stands for a text.
jinja::Value expanded(const jinja::Value& value, const Json& texts) {
  if (value.is_string() && value.get_ref<const std::string&>().starts_with('#'))
    return texts[std::stoul(value.get<std::string>().substr(1))].get<std::string>();
  jinja::Value out = value;
  if (out.is_structured())
    for (jinja::Value& item : out) item = expanded(item, texts);
  return out;
}

TEST(ConversationEncoder, MarksAndFieldsAgreeWithTransformers) {
  std::ifstream file("test/golden/chat_marked.json");
  const auto all = jinja::Value::parse(file);
  const Json texts = Json::parse(golden::unzipped("texts.json.gz"))["texts"];
  int n = 0, n_tool_calls = 0;
  std::map<std::string, Tokenizer> tokenizers;
  for (const auto& c : all["cases"]) {
    const std::string name = c["name"], marked = c["template"], key = c["tokenizer"].dump() + c["added_tokens"].dump();
    if (!tokenizers.contains(key))
      tokenizers.emplace(key, open_with(c["tokenizer"], c["added_tokens"].get<std::vector<std::string>>()));
    const Tokenizer& tokenizer = tokenizers.at(key);
    std::string plain = marked;
    for (const std::string tag : {"{% generation %}", "{% endgeneration %}"})
      for (std::size_t at = plain.find(tag); at != std::string::npos; at = plain.find(tag)) plain.erase(at, tag.size());
    const std::map<std::string, std::string> variables{{"bos_token", "<|begin_of_text|>"}};
    const ChatTemplate with(marked, name, variables), without(plain, name + ", not marked", variables);
    EXPECT_TRUE(with.marks_answers() && !without.marks_answers());
    for (const ChatTemplate* chat : {&with, &without}) {
      if (chat == &without && !c["inferred"].get<bool>()) continue;
      const ConversationEncoder encoder(*chat, tokenizer);
      for (const auto& conversation : c["conversations"]) {
        std::vector<ChatMessage> messages;
        for (const auto& fields : conversation["messages"]) {
          const jinja::Value message = expanded(fields, texts);
          messages.push_back({.role = message["role"],
                              .content = message["content"].is_string() ? message["content"].get<std::string>() : "",
                              .fields = message_fields(message)});
          n_tool_calls += message.contains("tool_calls") ? 1 : 0;
        }
        jinja::Value given = jinja::Value::object();
        if (conversation.contains("tools")) given["tools"] = all["tools"];
        const EncodedConversation encoded = encoder.encode(messages, given);
        const std::string shown = chat->source() + conversation["messages"].dump();
        EXPECT_EQ(encoded.ids.size(), conversation["n_ids"]) << shown;
        EXPECT_EQ(fnv(encoded.ids), conversation["hash"]) << shown;
        EXPECT_EQ(Json(encoded.answers).dump(), conversation["answers"].dump()) << shown;
        ++n;
      }
    }
  }
  EXPECT_GT(n, 400);
  EXPECT_GT(n_tool_calls, 50);
}

/// The texts of the answers.
class Answers {
 public:
  explicit Answers(const std::string& jinja, const std::string& tokenizer = "smollm")
      : tokenizer_(golden::open(tokenizer)),
        chat_(jinja, "the template", {{"eos_token", "<|endoftext|>"}}),
        encoder_(chat_, tokenizer_) {}
  std::vector<std::string> of(const std::vector<ChatMessage>& messages) const {
    const EncodedConversation encoded = encoder_.encode(messages);
    EXPECT_EQ(golden::encode(tokenizer_, chat_.render(messages, ReplyBegin::omit), TemplateTokens::omit), encoded.ids);
    std::vector<std::string> out;
    for (const auto& [begin, end] : encoded.answers)
      out.push_back(tokenizer_.decode(std::span(encoded.ids).subspan(begin, end - begin)));
    return out;
  }

 private:
  Tokenizer tokenizer_;
  ChatTemplate chat_;
  ConversationEncoder encoder_;
};

using Texts = std::vector<std::string>;
const std::string kTurns =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(ConversationEncoder, FindsAnswersInTheirTurns) {
  const Answers answers(kTurns);
  EXPECT_EQ(answers.of({{"user", "a"}, {"assistant", "b"}, {"user", "b"}, {"assistant", ""}}),
            (Texts{"b<|im_end|>", "<|im_end|>"}));
  EXPECT_EQ(answers.of({{"user", "a"}}), Texts{});
  EXPECT_EQ(answers.of({{"assistant", "first"}, {"assistant", "second"}}),
            (Texts{"first<|im_end|>", "second<|im_end|>"}));
  // Text by users and assistants that looks like turns changes nothing.
  const std::string trap = "x<|im_end|>\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(answers.of({{"user", trap}, {"assistant", trap + "y"}, {"user", trap}, {"assistant", "z"}}),
            (Texts{trap + "y<|im_end|>", "z<|im_end|>"}));
}

TEST(ConversationEncoder, AnswersOfReasoningModels) {
  // As in Qwen3: the reasoning of earlier turns is left out, and the last turn always has a reasoning block.
  const Answers answers(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
      "{% set c = m.content.split('</think>')[-1].lstrip('\n') %}{% set r = '' %}{% if '</think>' in m.content %}"
      "{% set r = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') %}{% endif %}"
      "{{ ('<think>\n' + r + '\n</think>\n\n' if loop.last else '') + c }}{% else %}{{ m.content }}{% endif %}"
      "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
  EXPECT_EQ(answers.of({{"user", "a"}, {"assistant", "<think>\nwhy\n</think>\n\nb"}}),
            (Texts{"<think>\nwhy\n</think>\n\nb<|im_end|>"}));
}

TEST(ConversationEncoder, TemplatesWithoutAGenerationPrompt) {
  // As in Llama 2; and a turn that ends without a token of its own.
  const Answers ended(
      "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
      "{{ m.content.strip() }} {{ eos_token }}{% endif %}{% endfor %}");
  EXPECT_EQ(ended.of({{"user", "a"}, {"assistant", " b c "}, {"user", "d"}, {"assistant", "e"}}),
            (Texts{" b c <|endoftext|>", " e <|endoftext|>"}));
  const Answers open("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  EXPECT_EQ(open.of({{"user", "a"}, {"assistant", "b"}, {"user", "c"}}), (Texts{" b"}));
  const Answers sentence_piece("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "llama-story");
  EXPECT_EQ(sentence_piece.of({{"user", "Once"}, {"assistant", "upon a time"}, {"user", "x"}, {"assistant", "y"}}),
            (Texts{"upon a time", "y"}));
}

TEST(ConversationEncoder, TurnsAreLeftOutOfTheLoss) {
  const std::vector<ChatMessage> messages{{.role = "user", .content = "a"},
                                          {.role = "assistant", .content = "b", .is_trained = false},
                                          {.role = "user", .content = "c"},
                                          {.role = "assistant", .content = "d"}};
  EXPECT_EQ(Answers(kTurns).of(messages), (Texts{"d<|im_end|>"}));
  const std::string marked =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}<|im_start|>{% else %}{% generation %}{{ "
      "m.content }}"
      "{% endgeneration %}<|im_end|>{% endif %}{% endfor %}";
  EXPECT_EQ(Answers(marked).of(messages), (Texts{"d"}));
}

/// The message of the error, or empty if there was none.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::chat_template);
    return error.what();
  }
  return {};
}

TEST(ConversationEncoder, TemplatesThatDoNotFitAreRefused) {
  const Tokenizer gpt2 = golden::open("gpt2"), smollm = golden::open("smollm");
  const auto chatml = ChatTemplate::preset("chatml"), llama3 = ChatTemplate::preset("llama3");
  EXPECT_NE(
      refusal([&] { ConversationEncoder(*chatml, gpt2); }).find("chatml uses <|im_start|>, which is not one token"),
      std::string::npos);
  EXPECT_NE(refusal([&] { ConversationEncoder(*llama3, smollm); }).find("llama3 uses <|begin_of_text|>"),
            std::string::npos);
  const ChatTemplate silent("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
                            "silent");
  EXPECT_NE(refusal([&] { ConversationEncoder(silent, smollm); }).find("silent does not show where answer 1 of a"),
            std::string::npos);
  // What a model has to learn from must be in the text; turns that are left out must be known.
  const ConversationEncoder encoder(*chatml, smollm);
  const std::vector<ChatMessage> messages{{"user", "a"}, {"assistant", "b"}};
  EXPECT_EQ(refusal([&] { encoder.encode(messages, {{"tools", jinja::Value::array()}}); }), "");
  EXPECT_NE(refusal([&] { encoder.encode(messages, {{"tools", {{{"name", "f"}}}}}); }), "");
  for (const char* field : {"tool_calls", "reasoning_content"}) {
    const jinja::Value fields{{"role", "assistant"}, {"content", "b"}, {field, {{{"name", "f"}}}}};
    EXPECT_NE(refusal([&] { encoder.encode(std::vector<ChatMessage>{messages[0], {"assistant", "b", fields}}); }), "");
  }
  const ChatTemplate twice(
      "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% endfor %}",
      "twice");
  EXPECT_EQ(refusal([&] { ConversationEncoder(twice, smollm).encode(messages); }), "");
  EXPECT_NE(refusal([&] {
              ConversationEncoder(twice, smollm).encode(std::vector<ChatMessage>{{"assistant", "b", {}, false}});
            }),
            "");
  const ChatTemplate reversed("{% for m in messages[::-1] %}{{ m.role }}{{ m.content }}\n{% endfor %}", "reversed");
  EXPECT_NE(refusal([&] { ConversationEncoder(reversed, smollm); }), "");
}

}  // namespace
}  // namespace lockstep::text
