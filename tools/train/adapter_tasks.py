"""Tasks for adapters of the bundled model, like those of corpus.py: rng -> (key, question, answer).
The same split: a hash of the key, so that a held-out question is never trained on in any wording.
"""
import random

import corpus
import words as w

ONES = """zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept
dix-huit dix-neuf""".split()
TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante"}
ROMAN = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
         (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def to_roman(number):
    text = ""
    for value, letters in ROMAN:
        text += letters * (number // value)
        number %= value
    return text


def to_french(number):
    """0 to 9999, hyphens within the tens, as before the reform of 1990."""
    if number < 20:
        return ONES[number]
    if number < 100:
        if number >= 80:
            rest = number - 80
            return "quatre-vingts" if rest == 0 else f"quatre-vingt-{ONES[rest]}"
        tens = min(60, number // 10 * 10)
        rest = number - tens
        if rest == 0:
            return TENS[tens]
        return f"{TENS[tens]} et {ONES[rest]}" if rest in (1, 11) else f"{TENS[tens]}-{ONES[rest]}"
    unit, name = (1000, "mille") if number >= 1000 else (100, "cent")
    count, rest = divmod(number, unit)
    text = name if count == 1 else f"{ONES[count]} {name}"
    if rest == 0:
        return text + "s" if unit == 100 and count > 1 else text
    return f"{text} {to_french(rest)}"


def roman(rng):
    number = rng.randrange(1, 4000) if rng.random() < 0.9 else rng.randrange(1, 100)
    ask = rng.choice(("Write {} in Roman numerals.", "What is {} in Roman numerals?", "{} in Roman numerals",
                      "Convert {} to a Roman numeral."))
    return f"roman {number}", ask.format(number), to_roman(number)


def french(rng):
    number = rng.randrange(10 ** rng.choices((1, 2, 3, 4), (2, 18, 40, 40))[0])
    ask = rng.choice(("Write {} in French.", "What is {} in French words?", "Spell {} in French.", "{} in French"))
    # Words below 100 are learned by heart: one key, which is not held out, for all of them.
    key = f"french {number}" if number >= 100 else "french below 100"
    return key, ask.format(number), to_french(number)


def spell_and_count(word, letter):
    """Each letter with how many of the wanted ones there are up to it, then the count: "b0e1e2 = 2"."""
    count, parts = 0, []
    for other in word:
        count += other == letter
        parts.append(f"{other}{count}")
    return "".join(parts) + f" = {count}"


def made_up_word(rng):
    return "".join(rng.choice("bcdfghklmnprstwyz") + rng.choice("aeiou") for _ in range(rng.randrange(2, 4)))


def letters(rng):
    # Made-up words teach comparing: of the listed ones alone a small model learns counts by heart. They have one key,
    # which is not held out.
    made_up = rng.random() < 0.15
    word = made_up_word(rng) if made_up else rng.choice(w.WORDS)
    letter = rng.choice(word) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    ask = rng.choice(('How many "{}" are in {}?', 'How often does "{}" stand in {}?', 'Count "{}" in {}.',
                      '"{}" in {}'))
    key = "letters made up" if made_up else f"letters {letter} {word}"
    return key, ask.format(letter, word), spell_and_count(word, letter)


TASKS = {"roman": roman, "french": french, "letters": letters}


def draw(rng, task, held_out):
    """Question and answer on the wanted side of the split; draws again until it has them."""
    while True:
        key, question, answer = TASKS[task](rng)
        if corpus.is_held_out(key) == held_out:
            return question, answer


def held_out_set(seed, per_task):
    """Questions of all tasks in turn, each once, in the tool's input form: a line names its adapter."""
    by_task = []
    for task in TASKS:
        rng, lines, seen = random.Random(f"held-out {task} {seed}"), [], set()
        while len(lines) < per_task:
            question, answer = draw(rng, task, held_out=True)
            if question in seen:
                continue
            seen.add(question)
            lines.append({"id": f"{task}-{len(seen):04d}", "adapter": task,
                          "messages": [{"role": "user", "content": question}], "max_tokens": 64,
                          "metadata": {"task": task, "expected": answer}})
        by_task.append(lines)
    return [line for lines in zip(*by_task) for line in lines]
