"""The synthetic corpus: every sample is made here, from a random generator and the lists in words.py.

A sample is a list of chat messages (or a raw text) plus a `key`: what the sample asks for, whatever the
phrasing. The split is by a hash of the key, so a held-out question is never trained on in any wording.
"""
import json
import random
import zlib

import words as w

HELD_OUT_ONE_IN = 20


def is_held_out(key: str) -> bool:
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


# --- checkable tasks: rng -> (key, question, answer) ------------------------------------------------------------

def _operand(rng):
    digits = rng.choices((1, 2, 3), (10, 25, 65))[0]
    return rng.randrange(10 ** digits) if digits < 3 else rng.randrange(100, 1000)


# The arithmetic answer repeats the sum before solving it. Whatever the wording, the digits then stand at the
# same distance from each other, which a small model learns far faster than one circuit for each phrasing.
def add(rng):
    a, b = _operand(rng), _operand(rng)
    ask = rng.choice(("What is {} + {}?", "Add {} and {}.", "{} + {} =", "Calculate {} + {}.", "What is {} plus {}?"))
    return f"add {min(a, b)} {max(a, b)}", ask.format(a, b), f"{a} + {b} = {a + b}"


def sub(rng):
    return _difference(rng, _operand(rng), _operand(rng))


def sub_close(rng):
    """Operands less than a hundred apart: rare among random pairs, and the hard ones, since leading digits cancel."""
    a = rng.randrange(1000)
    return _difference(rng, a, min(999, max(0, a + rng.randrange(-99, 100))))


def _difference(rng, a, b):
    ask = rng.choice(("What is {0} - {1}?", "Subtract {1} from {0}.", "{0} - {1} =", "Calculate {0} - {1}.",
                      "What is {0} minus {1}?"))
    return f"sub {a} {b}", ask.format(a, b), f"{a} - {b} = {a - b}"


def sort(rng):
    items = rng.sample(w.WORDS, rng.choices((3, 4, 5, 6), (20, 30, 30, 20))[0])
    ask = rng.choice(("Sort these words: {}", "Put these words in alphabetical order: {}", "Alphabetize: {}"))
    return "sort " + " ".join(sorted(items)), ask.format(", ".join(items)), ", ".join(sorted(items))


def reverse(rng):
    items = rng.sample(w.WORDS, rng.choices((3, 4, 5, 6), (20, 30, 30, 20))[0])
    ask = rng.choice(("Reverse the order of these words: {}", "Reverse this list: {}", "List these words backwards: {}"))
    return "reverse " + " ".join(items), ask.format(", ".join(items)), ", ".join(reversed(items))


def _join(names):
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def extract(rng):
    name = rng.choice(w.NAMES)
    if rng.random() < 0.7:
        age, city, job = rng.randrange(18, 90), rng.choice(w.CITIES), rng.choice(w.JOBS)
        text = rng.choice((
            "{n} is {a} years old, lives in {c} and works as a {j}.", "{n}, a {j} from {c}, is {a} years old.",
            "In {c} there is a {j} called {n}, aged {a}.", "My friend {n} is a {a} year old {j} in {c}.",
        )).format(n=name, a=age, c=city, j=job).replace(" a engineer", " an engineer")
        fields = {"name": name, "age": age, "city": city, "job": job}
    else:
        count, item, price = rng.randrange(2, 100), rng.choice(w.ITEMS), rng.randrange(5, 500)
        text = rng.choice((
            "{n} bought {k} {i} for {p} dollars.", "Order from {n}: {k} {i}, total {p} dollars.",
            "For {p} dollars, {n} got {k} {i}.",
        )).format(n=name, k=count, i=item, p=price)
        fields = {"name": name, "count": count, "item": item, "price": price}
    asked = [f for f in fields if rng.random() < 0.7] or ["name"]
    ask = rng.choice(("Extract the {f} as JSON: {t}", "Return JSON with the {f}: {t}", "{t} Give me the {f} as JSON."))
    answer = json.dumps({f: fields[f] for f in asked})
    return "extract " + json.dumps(fields), ask.format(f=_join(asked), t=text), answer


def sentiment(rng):
    good = rng.random() < 0.5
    adjective, other = rng.sample(w.GOOD if good else w.BAD, 2)
    thing, opposite = rng.choice(w.THINGS), rng.choice(w.BAD if good else w.GOOD)
    text = rng.choice((
        "The {t} was {a} and {o}.", "{v} the {t}, {e}.", "What a {a} {t}, {e}.", "The {t} was {a}, {e}.",
        "The {t} was not {x}, {e}.", "I thought the {t} would be {x}, but it was {a}.", "{v} this {a} {t}.",
    )).format(t=thing, a=adjective, o=other, x=opposite, v=rng.choice(w.LIKED if good else w.DISLIKED),
              e=rng.choice(w.GOOD_AFTER if good else w.BAD_AFTER))
    text = text.replace(" a excellent", " an excellent").replace(" a amazing", " an amazing") \
        .replace(" a impressive", " an impressive").replace(" a enjoyable", " an enjoyable") \
        .replace(" a awful", " an awful").replace(" a ugly", " an ugly").replace(" a unpleasant", " an unpleasant") \
        .replace(" a annoying", " an annoying")
    ask = rng.choice(("Is this review positive or negative? {}", "Sentiment: {}", "Classify the sentiment: {}"))
    return "sentiment " + text, ask.format(text), "positive" if good else "negative"


def _ordinal(day):
    return f"{day}{'th' if 10 < day < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def date(rng):
    year, month, day = rng.randrange(1900, 2100), rng.randrange(1, 13), rng.randrange(1, 29)
    if rng.random() < 0.1:
        month, day = rng.choice(((1, 31), (3, 31), (5, 31), (7, 31), (8, 31), (10, 31), (12, 31), (4, 30), (6, 30),
                                 (9, 30), (11, 30), (1, 29), (3, 29), (7, 30), (12, 29)))
    name, iso = w.MONTHS[month - 1], f"{year}-{month:02d}-{day:02d}"
    key = "date " + iso
    if rng.random() < 0.2:
        ask = rng.choice(("Write {} in words.", "Spell out the date {}"))
        return key, ask.format(iso), f"{day} {name} {year}"
    text = rng.choice(("{d} {m} {y}", "{m} {d}, {y}", "{d} {s} {y}", "{m} {o}, {y}", "the {o} of {m} {y}",
                       "{y}/{n}/{d}", "{s} {d}, {y}")).format(
        d=day, m=name, y=year, s=name[:3], o=_ordinal(day), n=month)
    ask = rng.choice(("Convert to ISO format: {}", "Rewrite as YYYY-MM-DD: {}", "What is {} in ISO format?"))
    return key, ask.format(text), iso


CHECKABLE = {"add": add, "sub": sub, "sort": sort, "reverse": reverse, "extract": extract, "sentiment": sentiment,
             "date": date}
WEIGHTS = {"add": 25, "sub": 28, "sort": 17, "reverse": 9, "extract": 9, "sentiment": 3, "date": 8, "talk": 1}
# The end of the run goes to what is learned last.
FOCUS_WEIGHTS = {"add": 12, "sub": 22, "sub_close": 16, "sort": 36, "reverse": 4, "extract": 5, "sentiment": 1, "date": 3,
                 "talk": 1}

# --- small talk and stories: not checked, only trained -----------------------------------------------------------

ABOUT = ("I can add and subtract, sort and reverse words, extract JSON, judge sentiment, rewrite dates and tell "
         "stories.")
TALK = [("Hello!", "Hello! How can I help you?"), ("Hi", "Hello! How can I help you?"),
        ("Hello", "Hello! How can I help you?"), ("Good morning!", "Good morning! How can I help you?"),
        ("How are you?", "I am fine, thank you. How can I help you?"), ("What can you do?", ABOUT),
        ("Help", ABOUT), ("Who are you?", "I am a very small language model. " + ABOUT),
        ("Thank you!", "You are welcome!"), ("Thanks", "You are welcome!"), ("Goodbye", "Goodbye!"),
        ("Bye", "Goodbye!")]
SYSTEM = ["You are a helpful assistant.", "Answer briefly.", "You are a careful assistant. Answer exactly."]


def _a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _episode(rng, when, hero, friend):
    trouble, remedy = rng.choice(w.TROUBLES)
    found, spot, other = rng.choice(w.FOUND), rng.choice(w.SPOTS), rng.choice(w.SPOTS)
    feeling = rng.choice(w.FEELINGS)
    return rng.choice((
        f"{when}, {hero} and {friend} walked to {spot}. Soon {trouble}, so they {remedy}. "
        f"In the evening they were {feeling}.",
        f"{when}, the two friends came to {spot}. There {hero} found {found} and gave it to {friend}. "
        f"They were {feeling}.",
        f"{when}, {friend} wanted to rest near {spot}. Then {trouble}. {hero} was not worried, and they {remedy}.",
        f"{when}, they left {spot} and went on to {other}. \"Look,\" said {friend}, \"{found}!\" {hero} was {feeling}.",
    ))


def story(rng, animal=None, friend_animal=None, episodes=None):
    """A journey told in days, or in months when it is very long. The calendar is what tells the model when to stop."""
    animal = animal or rng.choice(w.ANIMALS)
    friend_animal = friend_animal or rng.choice([a for a in w.ANIMALS if a != animal])
    episodes = episodes or rng.choice((3, 4, 5, 6, 7))
    hero, friend = rng.sample(w.HERO_NAMES, 2)
    wish, goal = rng.choice(w.WISHES)
    place = rng.choice(w.PLACES)
    parts = [f"Once upon a time, in {place}, there lived {_a(rng.choice(w.TRAITS))} {animal} named {hero}. "
             f"{hero} had a friend, {_a(rng.choice(w.TRAITS))} {friend_animal} named {friend}. "
             f"One day {hero} said, \"I want to {wish}.\" \"I will come with you,\" said {friend}."]
    for i in range(episodes):
        parts.append(_episode(rng, f"On {w.DAYS[i]}" if episodes <= 7 else f"In {w.MONTHS[i]}", hero, friend))
    parts.append(f"At last they came to {goal}. {hero} the {animal} and {friend} the {friend_animal} danced with joy. "
                 f"They had learned that {rng.choice(w.LESSONS)}. The end.")
    return "\n\n".join(parts)


STORY_LENGTHS = {"a short story": 2, "a story": 4, "a long story": 7, "a very long story": 12}


def story_chat(rng):
    kind = rng.choices(list(STORY_LENGTHS), (30, 40, 20, 10))[0]
    animal, friend = rng.sample(w.ANIMALS, 2)
    about = rng.choice((f" about {_a(animal)}", f" about {_a(animal)}", f" about {_a(animal)} and {_a(friend)}", ""))
    question = rng.choice(("Tell me {k}{a}.", "Write {k}{a}.")).format(k=kind, a=about)
    return question, story(rng, animal, friend, STORY_LENGTHS[kind])


# --- samples ------------------------------------------------------------------------------------------------------

def sample_checkable(rng, task, held_out):
    """A sample on the wanted side of the split; draws again until it has one."""
    draw = sub_close if task == "sub_close" else CHECKABLE[task]
    while True:
        key, question, answer = draw(rng)
        if is_held_out(key) == held_out:
            return question, answer


def short_turn(rng, weights=WEIGHTS):
    task = rng.choices(list(weights), weights.values())[0]
    return rng.choice(TALK) if task == "talk" else sample_checkable(rng, task, held_out=False)


def _messages(rng, turns):
    out = [("system", rng.choice(SYSTEM))] if rng.random() < 0.1 else []
    for question, answer in turns:
        out += [("user", question), ("assistant", answer)]
    return out


def short_sample(rng, weights=WEIGHTS):
    return _messages(rng, [short_turn(rng, weights)])


def long_sample(rng):
    """A raw story, a story in a chat, or a conversation of several short turns."""
    kind = rng.random()
    if kind < 0.25:
        return [("raw", story(rng))]
    if kind < 0.75:
        return _messages(rng, [story_chat(rng)])
    return _messages(rng, [short_turn(rng) for _ in range(rng.randrange(2, 8))])


def held_out_questions(seed, task, count, besides):
    """Further ones of one task, each once, none of them in `besides`."""
    rng, lines, asked = random.Random(f"held-out {task} {seed}"), [], set(besides)
    while len(lines) < count:
        question, answer = sample_checkable(rng, task, held_out=True)
        if question in asked:
            continue
        asked.add(question)
        lines.append({"id": f"{task}-more-{len(lines) + 1:04d}", "messages": [{"role": "user", "content": question}],
                      "max_tokens": 64, "metadata": {"task": task, "expected": answer}})
    return lines


def held_out_set(seed, per_task):
    """The published evaluation set, in the tool's input form."""
    rng, lines = random.Random(f"held-out {seed}"), []
    for task in CHECKABLE:
        seen = set()
        while len(seen) < per_task:
            question, answer = sample_checkable(rng, task, held_out=True)
            if question in seen:
                continue
            seen.add(question)
            lines.append({"id": f"{task}-{len(seen):04d}", "messages": [{"role": "user", "content": question}],
                          "max_tokens": 64, "metadata": {"task": task, "expected": answer}})
    return lines
