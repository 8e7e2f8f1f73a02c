"""How a terminal task is asked: families of prompts, split by hand into training and held-out ones.

Fields: `{s}` the path to start from, `{d}` the path to write to. Every family names the start before the steps. The
words that carry the meaning (read, word, count, lines, move, follow, copy) are the same in both splits, the words
around them are not arranged alike: no five words in a row of a held-out prompt occur in a training prompt of any
domain.
"""

from __future__ import annotations

TRAIN: dict[str, tuple[str, ...]] = {
    "read": (
        "read {s} and tell me the word it holds",
        "please read the file {s} , then say its word",
        "i need you to read {s} ; which word is there ?",
        "in this folder read {s} once and report the word",
        "kindly read {s} for me and answer with the word inside",
        "one small job : read {s} and give back its word",
        "could you read {s} quickly and write down the word ?",
        "your task is to read {s} and name the only word",
        "now read what {s} says and reply with that word",
        "we want you to read {s} and share the word found",
        "go ahead , read {s} , the word is my question",
        "just read {s} please , i only want the word",
        "after you read {s} send me a note with the word",
        "today someone should read {s} so that i get its word",
    ),
    "count": (
        "for {s} count the lines and tell me how many",
        "take the file {s} and count its lines for me",
        "look at {s} , count all lines and report the number",
        "please open {s} and count every one of the lines",
        "i need {s} checked : count lines , give the number",
        "how long is {s} ? count the lines and answer me",
        "with {s} do one thing , count how many lines exist",
        "your task : in {s} count lines and say the total",
        "could you go through {s} and count the lines there ?",
        "using the shell on {s} , count lines and reply",
        "we want to know about {s} ; count its lines now",
        "file {s} matters today , so count the lines inside",
        "here is {s} ; will you count the lines for us ?",
        "start from {s} , count lines , then send the number alone",
    ),
    "move": (
        "take the file {s} and move it to {d} please",
        "file {s} should now move to the place {d} today",
        "i need {s} somewhere else : move it over to {d}",
        "please pick {s} and move this one into {d} for me",
        "your task is that {s} must move and become {d}",
        "could you take {s} and then move it as {d} ?",
        "look for {s} ; once found , move it to {d}",
        "the path {s} is wrong , move the file to {d}",
        "with the shell take {s} , move that file under {d}",
        "we want {s} out of there , so move it to {d}",
        "one job for you : {s} has to move to {d}",
        "here is {s} ; just move it so that it is {d}",
        "after lunch someone will ask , so take {s} and move it to {d}",
        "start with {s} alone and only move it , target {d}",
    ),
    "follow": (
        "start at {s} and follow each pointer , then tell me the word",
        "open {s} , follow where it leads and say the last word",
        "begin with {s} ; follow the trail until there is a word",
        "from {s} follow every pointer and report the word you find",
        "please take {s} and follow it on to the final word",
        "the trail starts in {s} : follow it , give me the word",
        "your task begins at {s} ; follow the files to a word",
        "i left a hint in {s} , follow it and answer the word",
        "could you start from {s} and follow on until the word shows ?",
        "go to {s} first , follow what it says , name the word",
        "look into {s} , keep on : follow to the end and write the word",
        "we begin from {s} ; you follow , we want the word there",
        "one path is {s} , so follow it now and share its word",
        "using {s} as first step follow the chain down to its word",
    ),
    "copy": (
        "start at {s} and follow each pointer , then copy the last file to {d}",
        "open {s} , follow where it leads and copy that file as {d}",
        "begin with {s} ; follow the trail and copy its end to {d}",
        "from {s} follow every pointer , at the end copy into {d}",
        "please take {s} , follow it on and copy the final one to {d}",
        "the trail starts in {s} : follow it , then copy over to {d}",
        "your task begins at {s} ; follow the files , copy the end to {d}",
        "i left a hint in {s} , follow it and copy what ends it to {d}",
        "could you start from {s} and follow on , then copy it to {d} ?",
        "go to {s} first , follow what it says , copy the last to {d}",
        "look into {s} , keep on : follow to the end and copy under {d}",
        "we begin from {s} ; you follow , we want a copy in {d}",
        "one path is {s} , so follow it now and make a copy at {d}",
        "using {s} as first step follow the chain and copy its last file to {d}",
    ),
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    "read": (
        "today you should read {s} , after that send the word",
        "will you read file {s} ? i am asking for its word",
        "here is a task , read {s} then answer just its word alone",
        "start now , read {s} so we get the word",
    ),
    "count": (
        "i want you to take {s} and then count lines in it",
        "go and check {s} please , count the number of lines",
        "which number ? open {s} , count its lines , write that down",
        "someone left {s} here , just count the lines and share",
    ),
    "move": (
        "go to {s} first , then move the thing found to {d}",
        "i am through with {s} , please move that to {d} now",
        "kindly take file {s} , the target to move it is {d}",
        "start at {s} and only then move the one file to {d}",
    ),
    "follow": (
        "take {s} first and then follow on , which word is last ?",
        "i begin from {s} ; please follow the hint , send its word",
        "kindly look at {s} , follow all of it , what word is there",
        "here {s} is our start , will you follow to the word ?",
    ),
    "copy": (
        "take {s} first and then follow on , please copy the end as {d}",
        "i begin from {s} ; please follow the hint , its end we copy to {d}",
        "kindly look at {s} , follow all of it , only then copy to {d}",
        "here {s} is our start , will you follow and copy the last into {d} ?",
    ),
}
