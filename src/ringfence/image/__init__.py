"""The image that container sandboxes run, made on this machine.

One recipe (`context/`, which `deploy/image` in the repository shows) is carried out in one of two
ways: by the engine, from its Dockerfile, where a registry can be reached; or of Debian packages
alone by `mmdebstrap`, and imported. Both give the same image::

    from ringfence.image import build_image

    built = await build_image(with_data=True, on_step=lambda step: print(step.text))
    print(built.tag, built.size_bytes)
"""

from .build import BuiltImage, Step, Way, build_image, list_images
from .recipe import DEFAULT_BASE, DEFAULT_TAG

__all__ = (
    "DEFAULT_BASE",
    "DEFAULT_TAG",
    "BuiltImage",
    "Step",
    "Way",
    "build_image",
    "list_images",
)
