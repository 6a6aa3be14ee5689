"""Where the scripts of this folder write their picture: a file next to their input, unless --output names another one."""
import pathlib
import sys


def add_output(parser):
    parser.add_argument("--output", "-o", metavar="FILE.svg",
                        help="the picture; by default a file next to the input. `-` is the standard output")


def write_picture(svg, output, source, default_name):
    """Writes the picture and prints where it is. `source` is the path of the input."""
    if output == "-":
        sys.stdout.write(svg)
        return
    path = pathlib.Path(output) if output else pathlib.Path(source).parent / default_name
    path.write_text(svg, encoding="utf-8")
    print(f"wrote {path}")
