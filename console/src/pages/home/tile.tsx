import type { ReactNode } from 'react';
import { Link } from 'wouter';

/** One number of the node. */
export function Tile({
  label,
  value,
  unit,
  href,
}: {
  label: string;
  value: ReactNode;
  unit?: ReactNode;
  href?: string;
}) {
  return (
    <div className="tile">
      <div className="tile-label">
        {href ? (
          <Link href={href} className="link">
            {label}
          </Link>
        ) : (
          label
        )}
      </div>
      <div className="tile-value">
        {value ?? '–'} <span className="tile-unit">{unit}</span>
      </div>
    </div>
  );
}
