#!/usr/bin/env python3
"""Makes rouge.json: what Google's rouge_score and NLTK's PorterStemmer compute, and what the filters of
lm-evaluation-harness for gsm8k extract, for test/text/answer_match_test.cpp.

    make_rouge_golden.py messages_eval.jsonl     (answers of conversations: ../shared/data/chat)

  stems      [word, stem], one text separated by spaces
  texts      pairs with their scores: for rouge1, rouge2 and rougeL precision, recall and F, without and with stemming
  answers    pairs of answers of the file, by index: [reference, other, kind, F of the three without, and with stemming]
             kind 0: the other answer as it is; 1: the reference without every third word; 2: its words in reverse order
  numbers    [reference, answer, strict, flexible]: whether the final numbers are the same
"""
import json
import pathlib
import random
import re
import sys

import nltk
from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer

OUT = pathlib.Path(__file__).resolve().parent / "rouge.json"
KINDS = ["rouge1", "rouge2", "rougeL"]
PLAIN = rouge_scorer.RougeScorer(KINDS, use_stemmer=False)
STEMMED = rouge_scorer.RougeScorer(KINDS, use_stemmer=True)
RANDOM = random.Random(7)


def number(value):
    return round(value, 8)


def all_scores(reference, text):
    out = []
    for scorer in (PLAIN, STEMMED):
        scores = scorer.score(reference, text)
        out += [number(part) for kind in KINDS for part in scores[kind]]
    return out


def f_measures(reference, text):
    return [number(scorer.score(reference, text)[kind].fmeasure) for scorer in (PLAIN, STEMMED) for kind in KINDS]


def changed(answers, reference, other, kind):
    words = answers[reference].split(" ")
    if kind == 0:
        return answers[other]
    if kind == 1:
        return " ".join(word for i, word in enumerate(words) if i % 3 != 2)
    return " ".join(reversed(words))


def stems(answers):
    words = {word for answer in answers for word in re.findall("[a-z0-9]+", answer.lower()) if len(word) > 3}
    stemmer = PorterStemmer()
    changing = sorted(word for word in words if stemmer.stem(word) != word)
    same = sorted(words - set(changing))
    chosen = RANDOM.sample(changing, min(1500, len(changing))) + RANDOM.sample(same, 150)
    roots = ["relat", "hop", "tann", "fil", "fizz", "hiss", "troubl", "siz", "adjust", "conform", "sky", "ge", "the",
             "archae", "vietnam", "oper", "hope", "cal", "sensit", "form", "yy", "y", "ay", "x1", "1", "22", "z", "toy",
             "syzyg", "contro", "ceas", "prob", "rat", "gener", "fe", "agre", "b", "radic", "a"]
    suffixes = ["", "s", "es", "ies", "sses", "ed", "ied", "eed", "ing", "at", "ated", "bling", "izing", "ational",
                "tional", "enci", "anci", "izer", "bli", "abli", "alli", "entli", "eli", "ousli", "ization", "ation",
                "ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "fulli", "logi", "ology",
                "icate", "ative", "alize", "iciti", "ical", "ful", "ness", "al", "ance", "ence", "er", "ic", "able",
                "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ion", "ou", "ism", "ate", "iti", "ous", "ive",
                "ize", "e", "ll", "lle", "y", "yed", "ying", "ly", "ally", "fully"]
    made = sorted({root + suffix for root in roots for suffix in suffixes})
    chosen += RANDOM.sample(made, 900) + list(stemmer.pool)
    return [[word, stemmer.stem(word)] for word in chosen if len(word) > 2]


def texts(answers):
    pairs = [("", ""), ("", "word"), ("word", ""), ("...", "!?"), ("a", "a"), ("The cat sat.", "the CAT sat"),
             ("a a a b", "a b b b"), ("one two three four", "four three two one"), ("1,234.5 apples", "1 234 5 apple"),
             ("Käse und Brot", "Kase und Brot"), ("naïve café", "na ve caf"), ("東京 tower", "tower"),
             ("\u212Aelvin", "kelvin"), ("\u0130stanbul", "i stanbul istanbul"), ("\u212Bngstrom \u017Ft", "ngstrom st"),
             ("under_score-hyphen's", "under score hyphen s"), ("tabs\tand\nlines\r\n", "tabs and lines"),
             ("The runners were running quickly", "the runner runs quick"), ("skies dying news", "sky die new"),
             ("yyyyy eyes sayings", "yyyy eye saying"), ("generalizations organizations", "general organize"),
             ("x" * 300, "x" * 300), ("\x00nul\x7f", "nul"), ("emoji 😀 smile", "emoji smile")]
    short = [" ".join(a.split(" ")[:40]) for a in answers if len(a) > 60]
    for _ in range(16):
        a, b = RANDOM.sample(short, 2)
        pairs += [(a, b)]
    return [[a, b, all_scores(a, b)] for a, b in pairs]


def pairs_of_answers(answers):
    out = []
    for i in range(len(answers)):
        kind = i % 4 if i % 4 < 3 else 0
        other = RANDOM.randrange(len(answers)) if kind == 0 else i
        out.append([i, other, kind, *f_measures(answers[i], changed(answers, i, other, kind))])
    return out


# lm_eval/tasks/gsm8k/gsm8k.yaml
def plain(text):
    for ignored in (",", r"\$", r"(?s).*#### ", r"\.$"):
        text = re.sub(ignored, "", text)
    return text.lower()


def strict(answer):
    found = re.findall(r"#### (\-?[0-9\.\,]+)", answer)
    return found[0].strip() if found else "[invalid]"


def flexible(answer):
    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", answer)
    return [part for part in found[-1] if part][0].strip() if found else "[invalid]"


def numbers():
    references = ["2+2 = <<2+2=4>>4\n#### 4", "#### 1,234", "#### -5", "#### 0.50", "#### 70000", "#### #### 8"]
    answers = ["#### 4", "4", "The answer is 4.", "#### 4.", "#### 1234", "It is $1,234.00", "$1,234.", "#### -5", "minus 5, -5",
               "#### 5", "####5", "#### x #### 4", "#### 4 #### 5", "0.50", "#### 0.50", "#### 0.5", "70,000", "$70000.",
               "", "#### ", "no number", "4 and 5", "5 and 4", "#### 8", "- 5", "--5", "....", "a$", "3-4", "#### -", "1.",
               "#### 70,000\nQuestion: 3"]
    return [[r, a, plain(strict(a)) == plain(r), plain(flexible(a)) == plain(r)] for r in references for a in answers]


def main():
    with open(sys.argv[1]) as file:
        answers = [json.loads(line)["messages"][-1]["content"] for line in file]
    lines = [f'"stems": {json.dumps(" ".join(" ".join(pair) for pair in stems(answers)))}']
    for name, rows in (("texts", texts(answers)), ("answers", pairs_of_answers(answers)), ("numbers", numbers())):
        lines.append(f'"{name}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")
    OUT.write_text(f'{{"nltk": "{nltk.__version__}", "rouge_score": "0.1.2",\n' + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
