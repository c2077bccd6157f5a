"""Word lists of the synthetic corpus. Everything here is common vocabulary, listed by hand."""

# Words to sort and to reverse. Lower case, no two alike, short: one or two tokens each.
WORDS = """
acorn actor alarm amber anchor angle apple apron arrow autumn baker banjo barn basket beach bear berry bird
blanket boat bottle bread bridge brush bucket butter button cabin cactus camel candle canyon carpet carrot castle
chair cherry circle clock cloud coffee comet copper cotton cradle crayon crown dancer desert diamond dinner dragon
drum eagle earth echo elbow engine fabric falcon farmer feather fence fiddle finger flame flute forest fossil
fountain garden ginger glass glove goat grape guitar hammer harbor hat hazel helmet honey horse island ivory
jacket jelly jewel jungle kettle kitten ladder lake lamp lantern lemon letter lion lizard locket magnet mango
maple marble meadow melon mirror monkey mountain needle nest night noodle oak ocean olive onion orange orchid
otter oyster paddle palace panda paper parrot peach pearl pencil pepper piano pillow pilot planet pocket potato
puppet quartz queen quilt rabbit radio rain raven ribbon river robot rocket rope saddle sailor salad salmon
sandal school shadow shell shovel silver sister snow soap spider spoon spring square star station stone storm
sugar summer table teapot temple thunder tiger tomato tower train tunnel turtle umbrella valley velvet village
violin wagon walnut water whale wheel willow window winter wizard wolf yarn yellow zebra zipper
""".split()

NAMES = """Alice Amir Anna Ben Carla Carlos Clara Daniel Diana Elena Emma Eva Felix Fatima George Grace Hana Henry
Ines Ivan Jack James Julia Karim Kate Laura Leo Lina Lucas Maria Marta Max Mia Nadia Noah Nora Omar Oscar Paul Peter
Rosa Ruth Sam Sara Simon Sofia Tom Vera Victor Yuki""".split()

CITIES = """Athens Berlin Boston Cairo Chicago Delhi Denver Dublin Geneva Hamburg Helsinki Lagos Lima Lisbon London
Madrid Milan Moscow Munich Nairobi Oslo Paris Prague Quito Rome Seoul Sydney Tokyo Toronto Vienna Warsaw
Zurich""".split()

JOBS = """baker doctor teacher pilot nurse farmer lawyer painter singer writer chef driver dentist engineer gardener
carpenter librarian sailor tailor plumber""".split()

ITEMS = """apples books chairs pens cups lamps shirts plates pencils candles boxes hats""".split()

MONTHS = """January February March April May June July August September October November December""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

GOOD = """wonderful excellent great amazing lovely fantastic superb delightful brilliant perfect charming
pleasant beautiful impressive enjoyable""".split()
BAD = """terrible awful horrible bad dreadful disappointing boring poor dull ugly unpleasant rude broken
useless annoying""".split()
THINGS = """movie book meal hotel concert phone game show song restaurant service trip room coffee lesson museum
coat story garden party""".split()
LIKED = ["I loved", "I enjoyed", "I really liked", "We adored", "Everyone praised", "My friends loved"]
DISLIKED = ["I hated", "I regret", "I really disliked", "We could not stand", "Everyone complained about",
            "My friends hated"]
GOOD_AFTER = ["I would go back tomorrow", "it made my day", "I recommend it to everyone", "it was worth every minute",
              "I smiled the whole time", "we will come again"]
BAD_AFTER = ["I want my money back", "it ruined my day", "I would not recommend it to anyone",
             "it was a waste of time", "I was bored the whole time", "we will never come again"]

ANIMALS = """fox rabbit bear owl mouse turtle lion wolf cat dog frog horse hedgehog squirrel otter badger duck goat
tiger crow""".split()
HERO_NAMES = """Ruby Milo Luna Pip Hazel Finn Daisy Bruno Olive Rufus Willow Toby Poppy Oscar Maple Jasper""".split()
TRAITS = "brave curious gentle clever shy cheerful patient playful quiet kind".split()
PLACES = ["a green forest", "a quiet valley", "a small village", "a tall mountain", "a sunny meadow", "a deep cave",
          "an old barn", "a misty harbor"]
WISHES = [("find a hidden treasure", "the treasure"), ("see the great ocean", "the ocean"),
          ("climb the highest hill", "the top of the hill"), ("find the golden acorn", "the golden acorn"),
          ("reach the silver lake", "the silver lake"), ("find the lost lantern", "the lost lantern")]
SPOTS = ["the river", "the dark wood", "the old bridge", "the wide field", "the stone tower", "the windy hill",
         "the market", "the garden", "the frozen pond", "the narrow path"]
TROUBLES = [("a storm came", "waited under a big tree until the rain stopped"),
            ("the path was blocked by a fallen tree", "climbed over it with great care"),
            ("the bridge was broken", "built a small raft and floated across"),
            ("it grew very dark", "followed the light of the moon"),
            ("a cold wind began to blow", "made a warm fire and rested"),
            ("the map was torn", "asked a wise old owl for help"),
            ("there was nothing to eat", "shared a basket of sweet berries"),
            ("a loud noise came from the bushes", "looked closely and found a tiny lost bird")]
FOUND = ["a shiny stone", "a red feather", "a small key", "an old coin", "a blue shell", "a warm scarf", "a silver bell",
         "a jar of honey"]
FEELINGS = ["very happy", "tired but glad", "proud", "full of hope", "a little afraid", "calm and strong"]
LESSONS = ["a good friend makes every road shorter", "small steps can take you far",
           "it is brave to ask for help", "sharing makes everything sweeter", "patience opens every door",
           "home is where your friends are"]
