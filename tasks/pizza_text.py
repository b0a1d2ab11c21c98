"""Invented requests for the twin of random-pizza: titles, texts, user names and subreddits, from templates.

A request is told by its themes; each theme has several sentences with slots, so that no single word gives it away.
"""

from collections.abc import Callable

from tasks.words import fill, pick, shuffled

SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"


def write_code(random: Callable[[], float]) -> str:
    """Return the name of a picture."""
    return "".join(pick(random, SIGNS) for _ in range(6))


THEMES = {
    "job": [
        "I {lost} my job {ago} and {money}.",
        "My {relative} got laid off {ago}, so we are down to one income.",
        "They cut my hours at the {work} {ago} and {money}.",
        "I have been unemployed since {ago} and still go to interviews every week.",
        "The {work} where I was employed closed {ago} without paying the final check.",
        "I got fired from the {work} {ago} and unemployment benefits have not started.",
    ],
    "kids": [
        "I have {number} kids who have been eating {staple} for days.",
        "My {child} asked me for pizza tonight and it broke my heart to say no.",
        "I am a single parent with a {child} and a baby.",
        "Seeing my children smile would make the whole week better.",
        "My {child} has a birthday {soon} and there is nothing in the house.",
    ],
    "student": [
        "I am a college student living on {staple} until financial aid comes in.",
        "Finals are {soon} and I am studying all night at the university.",
        "My dorm has no kitchen and the meal plan ran out {ago}.",
        "Tuition and textbooks ate my whole budget this semester.",
    ],
    "forward": [
        "I will pay it forward {soon}.",
        "I promise to return the favor when I get paid {soon}.",
        "As soon as I am back on my feet I will buy a pie for somebody else here.",
        "I would gladly give back to this community with my first paycheck.",
    ],
    "thanks": [
        "Thank you so much for reading this.",
        "Anything at all would be greatly appreciated.",
        "I am really grateful to everybody who takes the time to help.",
        "Thanks in advance, you people are amazing.",
        "God bless anyone who can help us out.",
    ],
    "craving": [
        "I just have a huge craving for {topping} pizza right now.",
        "Pizza sounds awesome and I am too lazy to cook.",
        "Why not give it a shot, I love {topping} and free food.",
        "I would really like something with {topping}, nothing else will do.",
    ],
    "party": [
        "My friends and I are drinking and we got the munchies.",
        "We are having a party and watching the game with some beer.",
        "I am hungover and my girlfriend says I should ask the internet.",
        "We are playing video games all night and want snacks.",
    ],
    "medical": [
        "My {relative} is in the hospital and the bills keep coming.",
        "I had surgery {ago} and cannot work for a while.",
        "The doctor says I need rest, and the medication costs {number} hundred dollars.",
    ],
}
EVIDENCE = [
    "Here is a picture of my fridge: http://i.imgur.com/{code}.jpg",
    "Proof of my bank account: http://imgur.com/{code}",
    "I can send a photo, see http://i.imgur.com/{code}.png for a start.",
]
FILLER = [
    "It has been raining here in {city} all week.",
    "My car broke down {ago} and the repair is not cheap.",
    "Rent is due {soon}.",
    "There is a {chain} down the street from us.",
    "I have been lurking on this site for a while and never thought I would post here.",
    "The food bank is closed until {soon}.",
    "I have some {staple} left in the cupboard, but that is about it.",
    "My {relative} told me about this place {ago}.",
    "I live in {city} with my {relative} and a dog.",
    "The last few weeks were rough for us.",
    "I know there are people who need it more than I do.",
    "Please message me if you have questions.",
    "Payday is {soon} and until then my account is at {number} dollars.",
    "I hate to ask, I have always been the one who helps others.",
    "Sorry for the wall of text.",
    "We moved to {city} {ago} and know nobody.",
    "I used to work at a {work} and now mostly do odd jobs.",
    "Any kind of {topping} is fine with us.",
    "I can pick it up at the {chain} or have it delivered.",
    "English is not my first language.",
]
SLOTS = {
    "code": write_code,
    "lost": ["lost", "recently lost", "was let go from", "had to quit"],
    "ago": ["last week", "two weeks ago", "last month", "yesterday", "a few days ago", "in the spring", "on Monday"],
    "soon": ["on Friday", "next week", "tomorrow", "in two weeks", "on the first", "soon", "this weekend"],
    "money": ["money is tight", "the bills pile up", "I am broke", "my savings are gone", "we are behind on rent"],
    "relative": ["wife", "husband", "brother", "mom", "dad", "roommate", "fiance", "sister", "boyfriend", "girlfriend"],
    "child": ["daughter", "son", "4 year old", "little girl", "two year old", "stepson"],
    "number": ["two", "three", "four", "5", "six", "nine"],
    "work": ["warehouse", "restaurant", "factory", "call center", "store", "garage", "hotel"],
    "staple": ["ramen", "rice and beans", "noodles", "peanut butter", "oatmeal", "canned soup", "cereal"],
    "topping": ["pepperoni", "extra cheese", "mushrooms", "pineapple", "sausage", "olives", "bacon"],
    "chain": ["Dominos", "Pizza Hut", "Papa Johns", "Little Caesars", "local pizza place"],
    "city": ["Columbus", "Austin", "Portland", "Tampa", "Denver", "Halifax", "Leeds", "Fresno", "Omaha", "Richmond"],
}
OPENINGS = ["Hi everyone.", "Hello RAOP,", "Hey guys,", "So,", "First time poster here.", "Good evening.", "", ""]
TITLES = [
    "[Request] {city}, {theme}",
    "[REQUEST] {theme}, anyone willing to help?",
    "[Request] {theme} in {city}",
    "[request] {city} here, could use a {chain}",
    "[Request] Hungry in {city}, {theme}",
    "[REQUEST] would love a pizza tonight",
]
TITLE_THEMES = {
    "job": ["out of work", "laid off", "between jobs"],
    "kids": ["hungry kids", "pizza for my little ones", "family of four"],
    "student": ["broke student", "college student", "finals week"],
    "forward": ["will pay it forward", "will return the favor"],
    "thanks": ["would be thankful", "any help appreciated"],
    "craving": ["craving some pizza", "just want a slice"],
    "party": ["game night", "munchies", "hungover"],
    "medical": ["home from hospital", "sick and tired"],
}
SUBREDDITS = [
    "AdviceAnimals", "AskReddit", "Austin", "Books", "Cooking", "DIY", "Eve", "Fitness", "Frugal", "Guitar", "IAmA",
    "Jokes", "LosAngeles", "Minecraft", "Music", "Pets", "RandomKindness", "Random_Acts_Of_Amazon",
    "Random_Acts_Of_Pizza", "StarWars", "WTF", "Zelda", "anime", "apple", "assistance", "atheism", "aww",
    "baseball", "bestof", "books", "cats", "climbing", "comics", "diablo3", "drunk", "food", "funny", "gaming",
    "gifs", "hockey", "jobs", "loseit", "movies", "news", "nfl", "personalfinance", "photography", "pics",
    "politics", "pokemon", "relationships", "science", "skyrim", "soccer", "steam", "tattoos", "technology",
    "trees", "videos", "worldnews",
]  # fmt: skip
NAMES = [
    "blue", "cosmic", "lazy", "tiny", "grand", "silent", "happy", "rusty", "clever", "odd", "panda", "otter",
    "coder", "wizard", "pilot", "baker", "ghost", "fox",
]  # fmt: skip


def write_request(random: Callable[[], float], themes: list[str], evidence: bool, fillers: int) -> tuple[str, str]:
    """Return the title and text of a request: its themes, a link if evidence, and a number of other sentences."""
    parts = [pick(random, THEMES[theme]) for theme in themes]
    parts += shuffled(random, FILLER)[:fillers]
    parts = shuffled(random, parts)
    parts = [pick(random, OPENINGS), *parts, *([pick(random, EVIDENCE)] if evidence else [])]
    gap = "\n\n" if random() < 0.2 else " "
    text = gap.join(fill(random, part, SLOTS) for part in parts if part)
    theme = pick(random, TITLE_THEMES[pick(random, themes)]) if themes else "hungry tonight"
    return fill(random, pick(random, TITLES).replace("{theme}", theme), SLOTS), text


def write_name(random: Callable[[], float]) -> str:
    """Return a user name."""
    return f"{pick(random, NAMES)}_{pick(random, NAMES)}{int(random() * 1000)}"
