! Apart from its caller, so that no compiler leaves calls out.
subroutine loop(x, y, n)
  integer, intent(in) :: n
  double precision, intent(in) :: x(n, n)
  double precision, intent(out) :: y(n, n)
  integer :: i, j
  do j = 1, n
    do i = 1, n
      y(i, j) = sqrt(x(i, j) * x(i, j) + 1d0) * 0.5d0 + x(i, j) / 3d0
    end do
  end do
  y(4, 6) = 1d0
end subroutine
