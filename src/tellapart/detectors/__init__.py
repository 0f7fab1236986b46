"""Where things are in a photo, and what they are: boxes, scores and classes by a detector that the user hands over.

    letterbox.py   a photo as the network takes it
    boxes.py       what the network gives, as boxes; boxes that show the same thing
    yolox.py       an ONNX file as a detector
    detections.py  what a detector finds in photos, kept between runs

A photo's boxes come with a mask, most confident first, so that they can be the rows of a captioner's input stream
(`data.streams`): what is missing for that is features of what is in each box.
"""
