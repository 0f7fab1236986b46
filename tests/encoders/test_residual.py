"""ResNeXt and 3D-ResNet-18 from files in torchvision's layout, which the tests write."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from capscore.errors import UserError
from support.clips import write_clip
from tellapart.encoders.classifiers import ResNet3d, ResNeXt, load
from tellapart.features.extracted import read_item
from tellapart.recipe import EncoderConfig

CPU = torch.device("cpu")


def drawn(shapes):
    """Tensors by name; convolutions keep the size of what they are given, and variances are positive."""
    draw, tensors = torch.Generator().manual_seed(0), {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=draw)
        if name.endswith("running_var"):
            value = 0.5 + value.abs()
        elif len(shape) > 1:
            value = value * (1 / np.prod(shape[1:])) ** 0.5
        tensors[name] = value
    for name in [name for name in tensors if name.endswith("running_var")]:
        tensors[name.replace("running_var", "num_batches_tracked")] = torch.tensor(3)
    return tensors


def norm(name, size):
    return {f"{name}.{part}": (size,) for part in ("weight", "bias", "running_mean", "running_var")}


def resnext_shapes(blocks=(2, 1, 1, 1), width=8, groups=4, outputs=16, labels=5):
    """torchvision's names of a ResNeXt of `width` inner channels in the first stage."""
    shapes = {"conv1.weight": (outputs // 4, 3, 7, 7)} | norm("bn1", outputs // 4)
    inputs = outputs // 4
    for stage, count in enumerate(blocks):
        inner, outer = width * 2**stage, outputs * 2**stage
        for number in range(count):
            block = f"layer{stage + 1}.{number}"
            shapes |= {f"{block}.conv1.weight": (inner, inputs, 1, 1)} | norm(f"{block}.bn1", inner)
            shapes |= {f"{block}.conv2.weight": (inner, inner // groups, 3, 3)} | norm(f"{block}.bn2", inner)
            shapes |= {f"{block}.conv3.weight": (outer, inner, 1, 1)} | norm(f"{block}.bn3", outer)
            if number == 0:
                shapes |= {f"{block}.downsample.0.weight": (outer, inputs, 1, 1)}
                shapes |= norm(f"{block}.downsample.1", outer)
            inputs = outer
    return shapes | {"fc.weight": (labels, inputs), "fc.bias": (labels,)}


def resnet_3d_shapes(width=4, labels=6):
    shapes = {"stem.0.weight": (width, 3, 3, 7, 7)} | norm("stem.1", width)
    inputs = width
    for stage in range(4):
        outer = width * 2**stage
        for number in range(2):
            block = f"layer{stage + 1}.{number}"
            shapes |= {f"{block}.conv1.0.weight": (outer, inputs, 3, 3, 3)} | norm(f"{block}.conv1.1", outer)
            shapes |= {f"{block}.conv2.0.weight": (outer, outer, 3, 3, 3)} | norm(f"{block}.conv2.1", outer)
            if number == 0 and stage:
                shapes |= {f"{block}.downsample.0.weight": (outer, inputs, 1, 1, 1)}
                shapes |= norm(f"{block}.downsample.1", outer)
            inputs = outer
    return shapes | {"fc.weight": (labels, inputs), "fc.bias": (labels,)}


def normed(t, name, x):
    shape = (1, -1) + (1,) * (x.ndim - 2)
    mean, variance, gain, bias = (
        t[f"{name}.{part}"].view(shape) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-5).sqrt() * gain + bias


def resnext_by_hand(t, x, blocks, groups):
    x = normed(t, "bn1", F.conv2d(x, t["conv1.weight"], stride=2, padding=3)).relu()
    x = F.max_pool2d(x, 3, 2, padding=1)
    for stage, count in enumerate(blocks):
        for number in range(count):
            b, stride = f"layer{stage + 1}.{number}", 2 if stage and not number else 1
            y = normed(t, f"{b}.bn1", F.conv2d(x, t[f"{b}.conv1.weight"])).relu()
            y = F.conv2d(y, t[f"{b}.conv2.weight"], stride=stride, padding=1, groups=groups)
            y = normed(t, f"{b}.bn3", F.conv2d(normed(t, f"{b}.bn2", y).relu(), t[f"{b}.conv3.weight"]))
            if number == 0:
                x = normed(t, f"{b}.downsample.1", F.conv2d(x, t[f"{b}.downsample.0.weight"], stride=stride))
            x = (x + y).relu()
    return x.mean((2, 3)) @ t["fc.weight"].T + t["fc.bias"]


def resnet_3d_by_hand(t, x):
    x = normed(t, "stem.1", F.conv3d(x, t["stem.0.weight"], stride=(1, 2, 2), padding=(1, 3, 3))).relu()
    for stage in range(4):
        for number in range(2):
            b, stride = f"layer{stage + 1}.{number}", 2 if stage and not number else 1
            y = normed(t, f"{b}.conv1.1", F.conv3d(x, t[f"{b}.conv1.0.weight"], stride=stride, padding=1)).relu()
            y = normed(t, f"{b}.conv2.1", F.conv3d(y, t[f"{b}.conv2.0.weight"], padding=1))
            if stride > 1:
                x = normed(t, f"{b}.downsample.1", F.conv3d(x, t[f"{b}.downsample.0.weight"], stride=stride))
            x = (x + y).relu()
    return x.mean((2, 3, 4)) @ t["fc.weight"].T + t["fc.bias"]


def test_resnext_from_a_file_gives_the_classes_of_the_keyframe(tmp_path):
    blocks, groups = (2, 1, 1, 1), 4
    tensors = drawn(resnext_shapes(blocks, groups=groups))
    torch.save(tensors, tmp_path / "resnext.pth")
    encoder = load(EncoderConfig(str(tmp_path / "resnext.pth"), 64, 1), CPU)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / "a.png")
    pixels = read_item(encoder, tmp_path / "a.png").pixels
    assert pixels.shape == (1, 1, 64, 64, 3)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    given = ((torch.from_numpy(pixels[0]).float() / 255 - mean) / std).permute(0, 3, 1, 2)
    expected = resnext_by_hand(tensors, given, blocks, groups).softmax(1)
    torch.testing.assert_close(encoder(pixels[None]).grid[0], expected, atol=1e-4, rtol=0)


def test_resnet_3d_from_a_file_gives_the_actions_around_the_keyframe(tmp_path):
    tensors = drawn(resnet_3d_shapes())
    torch.save(tensors, tmp_path / "r3d_18.pth")
    encoder = load(EncoderConfig(str(tmp_path / "r3d_18.pth"), 32, 1, frames=2), CPU)
    pixels = read_item(encoder, write_clip(tmp_path / "a.mkv", 50, codec="ffv1")).pixels
    assert pixels.shape == (2, 16, 32, 32, 3)
    mean, std = torch.tensor([0.43216, 0.394666, 0.37645]), torch.tensor([0.22803, 0.22145, 0.216989])
    given = ((torch.from_numpy(pixels).float() / 255 - mean) / std).permute(0, 4, 1, 2, 3)
    expected = resnet_3d_by_hand(tensors, given).softmax(1).mean(0)
    torch.testing.assert_close(encoder(pixels[None]).grid[0, 0], expected, atol=1e-4, rtol=0)


def test_published_sizes():
    """torchvision's parameter counts."""
    with torch.device("meta"):
        networks = {
            25_028_904: ResNeXt((3, 4, 6, 3), 128, 32, 1000),
            88_791_336: ResNeXt((3, 4, 23, 3), 256, 32, 1000),
            33_371_472: ResNet3d(400),
        }
    for count, network in networks.items():
        assert sum(weight.numel() for weight in network.parameters()) == count


def test_a_file_with_more_than_tensors_in_it_is_not_opened(tmp_path):
    torch.save({"fc.weight": print}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match=r"evil\.pth: is no file of weights, or damaged, or has more in it"):
        load(EncoderConfig(str(tmp_path / "evil.pth")), CPU)
    torch.save({"fc.weight": [1]}, tmp_path / "list.pth")
    with pytest.raises(UserError, match=r"list\.pth: is no state dict"):
        load(EncoderConfig(str(tmp_path / "list.pth")), CPU)


@pytest.mark.slow
def test_a_3d_resnet_learns_which_way_things_move():
    """The same frames forwards and backwards: only time tells."""
    torch.manual_seed(0)
    network = ResNet3d(2, width=4, inputs=1)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(1)

    def clips(count):
        start, row = (torch.randint(24, (count,), generator=draw) for _ in range(2))
        way = torch.randint(2, (count,), generator=draw)
        frames = torch.zeros(count, 1, 5, 24, 24)
        for n in range(count):
            for t in range(5):
                column = int(start[n] + (3 * t if way[n] else -3 * t)) % 20
                frames[n, 0, t, row[n] % 20 : row[n] % 20 + 4, column : column + 4] = 1
        return frames, way

    for _ in range(40):
        frames, way = clips(24)
        loss = F.cross_entropy(network(frames), way)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    frames, way = clips(64)
    found = network.eval()(frames).argmax(1)
    assert (found == way).float().mean() > 0.85
