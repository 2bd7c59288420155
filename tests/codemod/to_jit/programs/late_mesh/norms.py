from layers import Norm


def normalized(x):
    return Norm(scale=2.0, axis_name="batch")(x)
