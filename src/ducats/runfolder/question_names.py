"""Names of the files of questions and answers, in ``questions/`` and in its folder of each round."""

ANSWER_LOG = "answers.jsonl"  # every received answer
LABEL_STUDIO_STATE = "label-studio.json"

# In the folder of a round. The files for annotators:
CLASSES = "classes.txt"
QUESTIONS_TABLE = "questions.csv"
QUESTIONS_PAGE = "questions.html"
PIXELS_TABLE = "pixels.csv"
README = "README.txt"
THUMBNAILS = "thumbnails"
MASKS = "masks"
OVERLAYS = "overlays"
IMAGES = "images"
# Written by annotators:
ANSWER_TABLES = "answers*.csv"
ANSWER_MAPS = "answers"
# Written by a run that shares answers with others:
SHARED_MAPS = "shared"  # label PNGs with the pixels that other runs know
# For tools:
RULES = "rules.json"  # written last, except the table of masks
QUESTIONS = "questions.jsonl"
CLOSED = "closed.json"  # the final labels
