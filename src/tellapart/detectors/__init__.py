"""Where things are in a photo, and what they are: boxes, scores and classes by a detector that the user provides.

detector.py    what every detector gives, and what is common to all
loading.py     from a name to a detector
letterbox.py   a photo as YOLOX takes it
boxes.py       what YOLOX gives, as boxes; boxes that show the same thing
yolox.py       an ONNX file as a detector
detr.py        DETR and its like in transformers
detections.py  what a detector finds in photos, kept between runs
regions.py     the boxes as regions for captioners, with features of an encoder's map
"""

KINDS = "a YOLOX export (FILE.onnx), or a DETR or RT-DETR of transformers by folder or hub id"
