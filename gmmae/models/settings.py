"""The section `model` of a configuration: the Gaussian-mixture autoencoder."""

from dataclasses import dataclass
from typing import Annotated, Literal

from gmmae.config.rules import MAY_CHANGE_ON_RESUME, NonNegativeFloat, PositiveInt, PositiveInts, Rule, Section, require

Decoder = Literal["dense", "lattice"]
Covariance = Literal["partial", "paper"]
Activation = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh"]

CORRELATION = Rule("above 0 and at most 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True)
class ModelConfig(Section, name="model"):
    """The sizes and forms of the autoencoder."""

    filters: PositiveInts = (32, 32, 32)  # filters of each convolution
    kernels: tuple[int, ...] = (7, 5, 3)  # kernel edge of each convolution, in voxels
    padding: Literal["VALID", "SAME"] = "VALID"  # padding of the convolutions
    activation: Activation = "relu"  # after each convolution and the latent layer
    latent_dim: PositiveInt = 128  # length of the latent vector
    components: PositiveInt = 50  # normal distributions in the mixture (K)
    covariance: Covariance = "partial"  # partial: always positive definite; paper: Eq. 6 to the letter, may give NaN
    rho: Literal["sigmoid", "tanh"] = "sigmoid"  # range of the correlations: sigmoid (0, 1), tanh (-1, 1)
    sigma_floor: NonNegativeFloat = 0.5  # smallest standard deviation, in voxels
    rho_limit: Annotated[float, CORRELATION] = 0.99  # largest absolute correlation
    decoder: Decoder = "dense"  # from latent vector to mixture: dense, the paper's layers; lattice, components by place
    lattice_size: PositiveInt = 6  # lattice: cells along each axis
    cell_components: PositiveInt = 2  # lattice: normal distributions in each, in place of components
    mask_weight: NonNegativeFloat = 0.001  # lattice: of the mask's cross-entropy in the loss
    mass_weight: NonNegativeFloat = 0.001  # lattice: of the squared error of log mass in the loss
    fused: Annotated[bool, MAY_CHANGE_ON_RESUME] = True  # on an NVIDIA GPU, loss and gradient in one kernel

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.kernels) == len(self.filters) and min(self.kernels) >= 1,
            "model.kernels",
            f"{len(self.filters)} positive numbers, one for each of model.filters",
            self.kernels,
        )
