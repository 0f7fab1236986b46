"""Answers as vision models give them, and the caption that a person would copy out of each."""

import time

import pytest

from tellapart.desk.chatter import caption_in, has_chatter, is_refusal, one_line

DOG = "A dog on a sofa."


def listed(texts):
    """Texts with broken bars between them."""
    return [text.strip(" ") for text in texts.strip("\n").replace("¦\n", "¦").split("¦")]


ANSWERS = {  # with that caption
    "quotes": """
        "A dog on a sofa." ¦ \u201cA dog on a sofa.\u201d""",
    "labels and first words": """
        Caption: A dog on a sofa. ¦ **Caption:** A dog on a sofa. ¦ Image caption: "A dog on a sofa." ¦
        Alt text: A dog on a sofa. ¦ ## Caption\n\nA dog on a sofa. ¦
        Sure! Here is a caption for the photo:\n\nA dog on a sofa. ¦ Sure! A dog on a sofa. ¦
        Sure, here's a one-sentence caption: "A dog on a sofa." ¦
        Certainly! Here\u2019s a caption for the image:\n> A dog on a sofa. ¦ Here's a caption: A dog on a sofa. ¦
        Of course! The image shows a dog on a sofa. ¦
        Okay, here are a few options:\n\n1. A dog on a sofa.\n2. A sleepy dog.""",
    "openings": """
        The image shows a dog on a sofa. ¦ This image depicts a dog on a sofa. ¦ The photo captures a dog on a sofa. ¦
        This is a photo of a dog on a sofa. ¦ The image is a photograph of a dog on a sofa. ¦
        In this image, we can see a dog on a sofa. ¦ In this picture we see a dog on a sofa. ¦
        The provided image shows a dog on a sofa. ¦ The image you shared shows a dog on a sofa.""",
    "markdown": """
        **A dog on a sofa.** ¦ A **dog** on a *sofa*. ¦ `A dog on a sofa.` ¦ ```\nA dog on a sofa.\n``` ¦
        ```text\nA dog on a sofa.\n``` ¦ - A dog on a sofa.\n- A dog asleep. ¦ 1. A dog on a sofa.\n2. A dog asleep. ¦
        A [dog](https://example.com/dog) on a sofa. ¦ ```json\n{"caption": "A dog on a sofa."}\n``` ¦
        {"description": "A dog on a sofa."}""",
    "hashtags": """
        A dog on a sofa. #dog #cute ¦ A dog on a sofa.\n\n#dog #sofa #relax""",
    "what comes after": """
        A dog on a sofa.\n\nLet me know if you need more! ¦
        A dog on a sofa. Let me know if you'd like another caption! ¦ A dog on a sofa. I hope this helps! ¦
        A dog on a sofa. Would you like me to make it shorter? ¦ A dog on a sofa. (Note: I cannot tell its breed.)""",
    "thoughts": """
        <think>What is this?\n\nA dog.</think>\n\nA dog on a sofa. ¦
        Let me look. It is a dog.\n</think>\n\nA dog on a sofa. ¦ <thinking>hm</thinking>A dog on a sofa. ¦
        ◁think▷hm◁/think▷A dog on a sofa. ¦ [THINK]hm[/THINK]A dog on a sofa. ¦
        <|begin_of_box|>A dog on a sofa.<|end_of_box|> ¦ A dog on a sofa.<end_of_turn> ¦
        <answer>A dog on a sofa.</answer>""",
}


UNCHANGED = """
    A dog on a sofa. ¦ a sign that says sorry ¦ A man shows the image of a cat to a child ¦ #1 jersey ¦
    a player in a #23 jersey ¦ A number #7 on a race car ¦ #MeToo is painted on a wall ¦ a banner that reads #MeToo ¦
    Demonstrators with the hashtags #SaveTheTrees and #Climate ¦ "Stop" and "go" are painted on the road ¦
    "Stop", says a sign that reads "no" ¦ 'Twas the night before Christmas, a card says, 'and all was still' ¦
    A clock at 10:30: time for tea ¦ Here is a clock at 10:30 in a station ¦ Caption contest winners on a stage ¦
    2 dogs on a sofa ¦ 1. FC Köln players celebrate ¦ A picture of a woman hangs on a wall ¦
    A photo of a dog stands on a desk ¦ A black and white photo of a train ¦ A photo booth shows four portraits ¦
    In the picture frame, a cat looks out ¦ The image on the screen shows a heart ¦
    The photographer shows her picture ¦ Picture frames show a family ¦ Image 7 of a calendar shows a lake ¦
    Sure-footed goats on a cliff ¦ Of course cars wait at a red light ¦ An okay sign made with a hand ¦
    Let me in, says the writing on a door ¦ A note: milk, eggs and bread ¦ A 5 * 7 frame and a 3 * 4 frame ¦
    file_name_of_a_dog written on a board ¦ A C# book beside a Java book ¦
    Sorry we are closed, says a sign on a door ¦ A man says sorry to a woman ¦
    I can't believe it's not butter tub on a table ¦ I love New York mugs on a shelf ¦
    As an artist paints, children watch ¦ Unable to swim, a dog wears a life vest ¦
    A robot that says: I'm sorry, I can't do that ¦ We cannot see the face of the girl with the white T-shirt ¦
    <3 is written on a cake ¦ A board with x < y and y > z ¦ 一只狗。 ¦ כלב על ספה"""


REFUSALS = """
    I'm sorry, but I can't help with identifying people in images. ¦
    I\u2019m sorry, but I can\u2019t assist with that request. ¦ I'm sorry, I can't help with that. ¦
    I'm sorry, but I cannot provide a caption for this image. ¦ I am sorry, but I am unable to see images. ¦
    Sorry, I can't do that. ¦ Sorry, but I'm not able to describe this photo. ¦
    I apologize, but I cannot generate a description of this content. ¦
    My apologies, but I'm unable to process this image. ¦ Unfortunately, I cannot view the image. ¦
    I can't help with that. ¦ I cannot identify the person in this photo. ¦
    I can't identify who this is, but the image shows a man in a suit. ¦
    I'm unable to provide a caption for this image. ¦ I am not able to see the image you are referring to. ¦
    I won't describe this image. ¦ I don't see any image attached. Please upload one. ¦
    I do not have the ability to view images. ¦ I must decline to describe this image. ¦
    As an AI language model, I cannot see images. ¦ As an AI, I don't have the ability to see photos. ¦
    I'm just an AI, I can't look at photos. ¦ I'm a text-based assistant and cannot view pictures. ¦
    It seems that no image was provided. ¦ It looks like you forgot to attach the image. ¦
    There is no image attached to your message. ¦ No image was provided. ¦
    Please provide the image you would like me to caption. ¦ Could you please upload the photo? ¦
    This request violates our content policy. ¦ Your request was rejected as a result of our safety system. ¦
    Unable to process the image. ¦ **I'm sorry, but I can't help with that.** ¦
    "I'm sorry, but I can't help with that." ¦ Caption: I'm sorry, but I can't describe this. ¦
    <think>Is this allowed?</think>I'm sorry, I can't comply with this request. ¦
    I'm sorry, but as an AI I can't recognise faces. ¦ I\u2019m not comfortable describing this image. ¦
    Es tut mir leid, aber ich kann dabei nicht helfen. ¦
    Je suis désolé, mais je ne peux pas identifier cette personne. ¦ Lo siento, pero no puedo ayudar con eso. ¦
    抱歉\uff0c我无法识别这张图片。"""


OTHERS = {
    "  A dog\n on a sofa. \n": DOG,
    "\u00abUn chien sur un canap\u00e9\u00bb": "Un chien sur un canap\u00e9",
    "the picture shows that a dog sleeps": "a dog sleeps",
    "In the photo, there is a dog on a sofa.": "There is a dog on a sofa.",
    "A dog on a sofa #dogsofinstagram": "A dog on a sofa",
    "A dog on a sofa! \N{DOG FACE} #dog": "A dog on a sofa! \N{DOG FACE}",
}
NOTHING = ["<think>I see a dog", "Caption:", "Sure!", "#dog #sofa", "", "```\n```", "..."]


@pytest.mark.parametrize("kind", [*ANSWERS, "others", "nothing"])
def test_the_caption_is_found_in_an_answer(kind):
    captions = OTHERS if kind == "others" else dict.fromkeys(NOTHING, "")
    captions = dict.fromkeys(listed(ANSWERS[kind]), DOG) if kind in ANSWERS else captions
    assert {answer: caption_in(answer) for answer in captions} == captions
    assert not any(map(has_chatter, captions.values()))
    assert kind == "nothing" or not any(map(is_refusal, captions))


def test_what_only_resembles_chatter_stays_as_it_is():
    captions = listed(UNCHANGED)
    assert list(map(caption_in, captions)) == captions
    assert [caption for caption in captions if has_chatter(caption) or is_refusal(caption)] == []


def test_a_refusal_is_known_as_one():
    assert [answer for answer in listed(REFUSALS) if not is_refusal(answer)] == []


def test_chatter_is_seen_in_a_caption_of_one_line():
    """Openings, quotes, lengths and spaces are other faults."""
    chatter = [DOG + end for end in (" #dog #cute", " Let me know if you need more!")] + ["Caption:", f"**{DOG}**"]
    chatter += [start + DOG for start in ("Sure! Here is a caption: ", "Caption: ", "<think>A dog?</think> ")]
    chatter += ['```json {"caption": "A dog on a sofa."} ```']
    others = ["The image shows a dog.", '"A dog"', "dog " * 200, "A dog  on\ta sofa"]
    assert [caption for caption in (*chatter, *others) if has_chatter(caption)] == chatter


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A dog\x1b[31m on\x00 a sofa\ud800.", "A dog on a sofa ."),
        ("A \x1b]0;owned\x07dog", "A dog"),
        ("A\r\ndog\u2028on\u2029a\x85sofa\x0b.", "A dog on a sofa ."),
        ("A \u202egod\u202c on a \u2066sofa\u2069", "A god on a sofa"),
        ("A\u200b dog\ufeff", "A dog"),
        ("\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}", "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
    ],
)
def test_a_line_holds_nothing_that_steers_a_terminal_or_turns_text_round(text, line):
    assert one_line(text) == line


def test_a_long_answer_is_cut_between_sentences_or_words():
    sentence = "A dog sleeps on a sofa. "
    assert caption_in(sentence * 100) == (sentence * 12).strip()  # 12 * 24 characters
    words = caption_in("dog " * 1000)
    assert words == ("dog " * 75).strip()
    assert caption_in("o" * 1000) == "o" * 300


@pytest.mark.parametrize(
    "unit", ["<think>", "**", "# ", "#a ", "I'm sorry ", "(", '"', "> ", "the image ", "1. ", "\n", "[a](", "here is "]
)
def test_an_answer_made_to_be_slow_is_not(unit):
    """Half a megabyte of what the patterns begin with: time that grows with the square would be minutes."""
    answer = unit * (500_000 // len(unit))
    began = time.process_time()
    caption_in(answer), is_refusal(answer), has_chatter(answer)
    assert time.process_time() - began < 5
