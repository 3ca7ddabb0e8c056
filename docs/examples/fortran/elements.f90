! Times a loop over elements written in Fortran beside an exported program that computes the same.
program main
  use, intrinsic :: iso_c_binding
  use chain
  implicit none
  integer, parameter :: n = 512, rounds = 40, calls = 20
  real(c_double), allocatable, target :: x(:, :), own(:, :), exported(:, :)
  integer(c_int64_t), allocatable :: scratch(:)
  integer(c_int) :: stat
  integer :: round, call
  integer(8) :: from, to, rate
  real(c_double) :: best(2) = huge(1d0)
  interface
    subroutine loop(x, y, n)
      integer, intent(in) :: n
      double precision, intent(in) :: x(n, n)
      double precision, intent(out) :: y(n, n)
    end subroutine
  end interface
  allocate(x(n, n), own(n, n), exported(n, n), scratch(chain_scratch_words()))
  call random_number(x)
  do round = 1, rounds
    call system_clock(from, rate)
    do call = 1, calls
      call loop(x, own, n)
    end do
    call system_clock(to)
    best(1) = min(best(1), dble(to - from) / rate / calls)
    call system_clock(from)
    do call = 1, calls
      call chain_run(x, exported, scratch, stat)
      if (stat /= 0) error stop "chain_run"
    end do
    call system_clock(to)
    best(2) = min(best(2), dble(to - from) / rate / calls)
  end do
  if (maxval(abs(own - exported)) > 1d-14) error stop "results differ"
  print '(a,f8.1,a,f8.1,a,f5.2)', 'Fortran ', best(1) * 1e6, ' us, exported ', best(2) * 1e6, ' us, ratio ', best(2) / best(1)
end program
