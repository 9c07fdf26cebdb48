# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A small U-Net of MONAI's."""

from monai.networks.nets import UNet


class LesionNet(UNet):
    """Two channels for each pixel, background and lesion, from one grey image."""

    def __init__(self) -> None:
        super().__init__(
            spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1
        )
