! Steps a column model in time. The model is a call: no Python, no libtorch, no copies.
program main
  use, intrinsic :: iso_c_binding
  use column
  implicit none
  integer, parameter :: columns = 8192, levels = 42, fluxes = 64, steps = 6
  real(c_double), allocatable, target :: x(:,:), y(:,:)
  integer(c_int64_t), allocatable :: scratch(:)
  integer(c_int64_t) :: start, now, rate
  real(c_double) :: took(steps)
  integer(c_int) :: stat
  integer :: i, j, step

  allocate(x(columns, levels), y(columns, fluxes), scratch(column_scratch_words()))
  do j = 1, levels
    do i = 1, columns
      x(i, j) = sin(real(i - 1, c_float) + 0.1 * real(j - 1, c_float))
    end do
  end do
  call system_clock(count_rate=rate)
  do step = 1, steps
    call system_clock(start)
    call column_run(x, y, scratch, stat)
    call system_clock(now)
    if (stat /= 0) then
      print *, column_message(stat)
      stop 1
    end if
    took(step) = 1e3 * real(now - start, c_double) / real(rate, c_double)
    ! Here a model would move its state on by y; this one keeps it, so that every step can be compared.
  end do
  print '(a,f8.1,a,f8.1,a)', 'Fortran: first call ', took(1), ' ms, later ', minval(took(2:)), ' ms, one thread'
  print '(a,es24.16)', 'sum ', sum(y)
end program
