"""Environment variables of an MPI job: those by which a process takes itself for one of its ranks."""

from __future__ import annotations

_OF_MPI = ("OMPI_", "ORTE_", "PMIX_", "PMI_", "PRTE_")
# What an operator sets, such as the network interfaces to use: TensorRT-LLM's own model.py keeps it as well.
_SETTINGS = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
# Of these, what mpirun itself tells its ranks.
_OF_MPIRUN = ("OMPI_MCA_orte_", "OMPI_MCA_ess")


def names_a_rank(variable: str) -> bool:
    """True for variables that must not reach a process that starts ranks of its own."""
    if variable.startswith(_SETTINGS):
        return variable.startswith(_OF_MPIRUN)
    return variable.startswith(_OF_MPI)
